"""Pliant: elastic distributed training. Workers come and go; training goes on.

This file holds the version and nothing else: importing `pliant` must cost nothing and pull in nothing. Import
what you need from the package that owns it; `docs/internals/README.md` says which package owns what.
"""

__version__ = "0.1.0"
