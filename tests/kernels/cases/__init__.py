"""Tables of cases of the kernel tests, by what the kernels do."""

import gc

gc.set_threshold(50_000, *gc.get_threshold()[1:])  # graphs of thousands of cases live as long as the process
