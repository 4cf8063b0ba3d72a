"""Scatters as operators that move elements."""
