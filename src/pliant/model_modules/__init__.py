"""Model modules: Python files with the functions that `pliant train`, `evaluate` and `predict` call."""
