"""The kernel tests' cases on a device: what is made beforehand, processes that run them, and what a sanitizer says."""
