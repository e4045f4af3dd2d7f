"""Named values that must be equal, and how two sets of them differ, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

DIFFERENCES_MAX = 8  # of more the first ones are named and the rest counted

Fingerprint = tuple[tuple[str, str], ...]
"""What decides which bits a member computes: its software and its hardware, as (name, value) pairs."""


def describe_differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """How `theirs` differ from the job's, as an end of a sentence; empty if they do not."""
    found = []
    for name in {**theirs, **ours}:
        mine, its = theirs.get(name), ours.get(name, "none")
        if mine is None:
            found.append(f"without {name} where the job has {its}")
        elif mine != its:
            said = f"a dataset of {mine}" if name == "samples" else f"{name} {mine}"
            found.append(f"with {said} where the job has {its}")
    shown = found[:DIFFERENCES_MAX]
    if len(found) > DIFFERENCES_MAX:
        shown.append(f"with {len(found) - DIFFERENCES_MAX} more differences")
    last = shown[-1:]
    return f"{', '.join(shown[:-1])}, and {last[0]}" if len(shown) > 1 else "".join(last)


def fingerprint_difference(ours: Fingerprint, theirs: Fingerprint) -> str:
    """Why somebody with these bits cannot compute with the job; empty: it can, or nobody says what its bits are."""
    differ = describe_differences(dict(ours), dict(theirs)) if ours and theirs else ""
    return f"computes other bits: {differ}" if differ else ""


def most_common(bits: Iterable[Fingerprint]) -> Fingerprint:
    """The bits that most of them have, of as many the first; those who do not say are not asked."""
    found = Counter(tuple(sorted(each)) for each in bits if each)
    return max(found, key=found.__getitem__, default=())
