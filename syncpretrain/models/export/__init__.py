"""Stacks as models of other libraries: ONNX, PyTorch, Keras, scikit-learn, plain arrays."""
