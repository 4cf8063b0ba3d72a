"""Builders of real network architectures as ONNX models, with random weights that keep activations in normal range."""
