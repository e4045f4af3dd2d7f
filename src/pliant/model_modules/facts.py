"""Facts about the data, the module and the model of a job: a short text each, which differs when they do."""

from __future__ import annotations

import hashlib

SHOWN = 80  # characters of a name


def described(name: str, content: str) -> str:
    """Return the last part of a name, with a hash of what it is the name of."""
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    return f"{name.rstrip('/').rpartition('/')[2][-SHOWN:]} ({digest})"
