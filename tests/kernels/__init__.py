"""Compiled C++ against numpy: headers and kernels, on a host of their own."""
