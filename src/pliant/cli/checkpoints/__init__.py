"""The commands that list, verify and export checkpoints."""
