"""ONNX Runtime sessions, child processes, temporary folders, and inputs for models."""
