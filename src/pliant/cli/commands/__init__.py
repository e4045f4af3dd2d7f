"""Commands that need no folder of their own, one module each."""
