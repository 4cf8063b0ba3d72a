"""Proofs for rewrites: conditions of laws, value ranges, and integer tensors as functions of their positions."""
