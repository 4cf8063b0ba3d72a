"""Definitions to kernels: analysis, loop nests, then passes over kernels; each backend has its own package."""
