"""Verbs, and the check of a device, over the stand-in for the driver."""
