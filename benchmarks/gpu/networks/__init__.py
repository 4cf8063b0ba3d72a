"""Networks of full size: built on a machine without a GPU, compared and timed on one with."""
