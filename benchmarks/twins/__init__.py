"""Hand-written kernels that generated code is measured against, and the race that measures them."""
