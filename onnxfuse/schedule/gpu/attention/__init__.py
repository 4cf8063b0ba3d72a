"""Kernels of attention: a block of threads at some rows of queries, by tensor cores or by the arithmetic of threads."""
