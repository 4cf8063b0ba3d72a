"""Definitions to kernels: analysed, made loop nests that go through passes; each backend has a room of its own."""
