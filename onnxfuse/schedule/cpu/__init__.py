"""Phases for the cores of a CPU: register tiles, shared rows, Winograd's algorithm, and the choice among them."""
