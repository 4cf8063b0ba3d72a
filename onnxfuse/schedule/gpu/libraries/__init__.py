"""Phases that a library of NVIDIA's may compute instead: cuBLASLt products, cuDNN convolutions."""
