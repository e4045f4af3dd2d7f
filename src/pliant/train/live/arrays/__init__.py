"""The engine of a framework whose gradients are arrays in host memory. The framework provides a `Frame`."""
