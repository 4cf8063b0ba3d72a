"""Measurements that are read, not asserted: nothing here is a test and no test depends on a time."""
