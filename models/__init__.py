"""Builders of real network architectures as ONNX models, with random weights under which every activation is alive."""
