"""Tables of cases of the kernel tests, by what the kernels do."""
