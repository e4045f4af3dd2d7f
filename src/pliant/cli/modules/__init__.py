"""The commands for model modules: `pliant train`, `pliant evaluate` and `pliant predict`."""
