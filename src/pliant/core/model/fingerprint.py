"""Fingerprints of members, and sentences about how two sets of named values differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

DIFFERENCES_MAX = 8  # the rest are counted

Fingerprint = tuple[tuple[str, str], ...]
"""A member's software and hardware, as (name, value) pairs: its results are bit for bit the same where these are."""


def describe_differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Return how `theirs` differ from the job's values, as the end of a sentence; empty if they are equal."""
    found = []
    for name in {**theirs, **ours}:
        mine, its = theirs.get(name), ours.get(name, "none")
        if mine is None:
            found.append(f"without {name} where the job has {its}")
        elif mine != its:
            shown = f"a dataset of {mine}" if name == "samples" else f"{name} {mine}"
            found.append(f"with {shown} where the job has {its}")
    named = found[:DIFFERENCES_MAX]
    if len(found) > DIFFERENCES_MAX:
        named.append(f"with {len(found) - DIFFERENCES_MAX} more differences")
    last = named[-1:]
    return f"{', '.join(named[:-1])}, and {last[0]}" if len(named) > 1 else "".join(last)


def fingerprint_difference(ours: Fingerprint, theirs: Fingerprint) -> str:
    """Return why a member with this fingerprint cannot compute with the job; empty if it can, or if one is unknown."""
    differ = describe_differences(dict(ours), dict(theirs)) if ours and theirs and ours != theirs else ""
    return f"computes other bits: {differ}" if differ else ""


def most_common(fingerprints: Iterable[Fingerprint]) -> Fingerprint:
    """Return the fingerprint that most members have, the first of several; members without one are not counted."""
    known = [tuple(sorted(each)) for each in fingerprints if each]
    if not known:
        return ()
    found = Counter(known)
    return max(found, key=found.__getitem__)
