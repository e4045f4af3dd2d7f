"""The training state of PyTorch: captured, restored, hashed, exported."""
