"""Operators of ai.onnx.ml as operators of the default domain: features, and models learned from them."""
