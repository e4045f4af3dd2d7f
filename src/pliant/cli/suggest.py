"""Suggestions for misspelt words of the command line."""

from __future__ import annotations

from collections.abc import Iterable

SHOWN_MAX = 8
CLOSE = 0.6  # the similarity from which difflib calls a word close


def closest(word: str, names: Iterable[str]) -> list[str]:
    """Return the names that `word` may stand for: those that it abbreviates, else those spelt alike. Best first."""
    from difflib import get_close_matches

    known = sorted(names)
    stem = word.rstrip("s") if len(word.lstrip("-")) > 2 else word
    abbreviated = [name for name in known if name.startswith(stem)] if stem.strip("-") else []
    return (abbreviated or get_close_matches(word, known, cutoff=CLOSE))[:3]


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return ` Did you mean 'a' or 'b'?`, with a space before it; empty without a suggestion."""
    found = [repr(name) for name in closest(word, names)]
    return f" Did you mean {' or '.join(found)}?" if found else ""


def listed(names: Iterable[str]) -> str:
    """Join names with commas; of many, the first few and a count."""
    known = list(names)
    more = f" and {len(known) - SHOWN_MAX} more (see `pliant jobs`)" if len(known) > SHOWN_MAX else ""
    return ", ".join(known[:SHOWN_MAX]) + more
