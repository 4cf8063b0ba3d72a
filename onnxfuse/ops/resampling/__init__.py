"""Operators that read an image between its elements: by factors, at given points, in regions."""
