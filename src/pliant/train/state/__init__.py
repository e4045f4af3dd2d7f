"""The training state as bytes: flattening, locking, transfer to a joiner."""
