"""Kernels of threads, written in the IR by hand: verified, interpreted and printed as CUDA."""
