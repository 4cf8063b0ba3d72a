"""Measurement of latency: interleaved runs of models, confidence intervals, times by node."""
