"""Names of session config entries through which a session and its kernel libraries communicate."""

from __future__ import annotations

STATUS = ".status"  # suffix of a domain: the entry in which a library reports whether its kernels run
DISABLE = "onnxfuse.disable"  # the entry with a comma-separated list of kernels whose function bodies run instead
FALLBACK = "fallback"  # the attribute of a fused node with its function body as a model (see fallback.h)
REGISTERED = "kernels for "  # prefix of the status of a library whose kernels run; its instruction set follows
ABI_VERSION = 18  # of the runtime's C API that libraries use: that of the oldest supported runtime, 1.18
RUNTIME = f"ONNX Runtime 1.{ABI_VERSION} or newer"  # what a library needs, for people
DOMAIN = "onnxfuse."  # what the domains of kernels begin with
