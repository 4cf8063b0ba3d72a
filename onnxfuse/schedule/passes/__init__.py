"""Kernels to kernels: prefetches, stores past the caches, reductions of blocks, and `legalize`, the last one."""
