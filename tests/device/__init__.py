"""Verbs and the GPU check, over a mock of the driver."""
