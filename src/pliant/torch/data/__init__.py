"""Loading samples as tensors, in this process or in data workers."""
