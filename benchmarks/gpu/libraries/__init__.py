"""What libraries of CUDA take for what kernels could do: products and convolutions with epilogues."""
