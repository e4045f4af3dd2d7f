"""Identifiers of members and agents, and the rule for valid names.

Names occur in URLs, file names, log lines and cluster labels, so they use only characters that all of these allow.
"""

from __future__ import annotations

from typing import NewType

MemberId = NewType("MemberId", str)


AgentId = NewType("AgentId", str)


NAME_MAX = 63  # of jobs and agents
MEMBER_NAME_MAX = 95  # a member's name begins with that of its agent


_EDGES = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


_INSIDE = _EDGES | frozenset("-._")


def bad_name(text: str, most: int = NAME_MAX) -> str:
    """Return why `text` is not a valid name of at most that many characters; empty if it is."""
    if not 1 <= len(text) <= most:
        return f"a name has 1 to {most} characters; this one has {len(text)}"
    if not (text[0] in _EDGES and text[-1] in _EDGES and _INSIDE.issuperset(text)):
        return f"a name has letters, digits, '-', '.' and '_', with a letter or digit at both ends; got {text!r}"
    return ""


def worker_name(agent: AgentId, run_id: str, number: int) -> MemberId:
    """Return the name of a worker: the agent numbers those that it starts, from 1 in each of its runs."""
    return MemberId(f"{agent}-{run_id}.{number}")


def bad_path_name(kind: str, text: str) -> str:
    """Return why `text` cannot stand in a URL for a `kind` of thing, such as `member`; empty if it can."""
    return bad_name(text, MEMBER_NAME_MAX if kind == "member" else NAME_MAX)
