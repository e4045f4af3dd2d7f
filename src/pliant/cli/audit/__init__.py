"""The command `pliant audit`."""
