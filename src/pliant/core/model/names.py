"""Identifiers of members and agents, and the rule for valid names.

Names stand in URLs, file names, log lines and labels of a cluster, so they keep to what all of those take.
"""

from __future__ import annotations

from typing import NewType

MemberId = NewType("MemberId", str)


AgentId = NewType("AgentId", str)


NAME_MAX = 63


_EDGES = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


_INSIDE = _EDGES | frozenset("-._")


def bad_name(text: str) -> str:
    """Why `text` cannot be a name; empty if it can."""
    if not 1 <= len(text) <= NAME_MAX:
        return f"a name has 1 to {NAME_MAX} characters; this one has {len(text)}"
    if not (text[0] in _EDGES and text[-1] in _EDGES and _INSIDE.issuperset(text)):
        return f"a name has letters, digits, '-', '.' and '_', with a letter or digit at both ends; got {text!r}"
    return ""
