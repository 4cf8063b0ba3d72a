"""Kernels that are launched on a device beside what is predicted of them: cases, what is made ready, and workers."""
