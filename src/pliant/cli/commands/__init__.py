"""One module for each command that needs no folder of its own."""
