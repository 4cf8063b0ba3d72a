"""Kernels to kernels: prefetches and stores past the caches."""
