"""Names and words by which a session and the libraries that are registered in it know each other."""

from __future__ import annotations

STATUS = ".status"  # behind a domain: the session config entry in which a library says whether its kernels run
DISABLE = "onnxfuse.disable"  # the entry that names kernels, commas between them, to be run as function bodies
REGISTERED = "kernels for "  # what a library says of itself, and its instruction set, where it is used
ABI_VERSION = 18  # of the runtime's C interface that libraries are made for: that of the oldest runtime, 1.18
