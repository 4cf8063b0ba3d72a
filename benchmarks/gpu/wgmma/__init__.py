"""What Hopper's wgmma does: see `__main__.py`."""
