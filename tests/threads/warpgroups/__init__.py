"""Products by warpgroups, and boxes of the copy engine."""
