"""Passes from kernel to kernel: prefetches, non-temporal stores, reductions of blocks, and `legalize`, the last one."""
