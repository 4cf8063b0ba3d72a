"""ONNX Runtime, other processes, work folders, and inputs for models."""
