"""Phases of elements: each thread at its own, or turned in shared memory where they are read along another axis."""
