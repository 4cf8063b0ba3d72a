"""Phases that compute elements one after the other along an axis: scans, scatters and recurrences."""
