"""Runs of a GPU kernel's launcher that are captured as CUDA graphs."""
