"""Pliant: elastic distributed training. Workers come and go; training goes on.

This file holds only the version, so that `import pliant` costs nothing. Import each name from the package that defines
it; `docs/internals/architecture.md` lists the packages, `docs/internals/public-api.md` the public ones.
"""

__version__ = "0.1.0"
