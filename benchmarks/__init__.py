"""Benchmarks. None of them is a test, and no test depends on a time."""
