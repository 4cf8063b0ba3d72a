"""The computations of the hand-written kernels as ONNX models, taken through the compiler and raced against them."""
