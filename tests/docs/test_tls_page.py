"""Walks through docs/operating/tls.md: a CA, a coordinator with TLS and with client certificates, and a renewal."""

from docs.walking import Walk, blocks
from tidy.files import ROOT


def test_the_page_shows_exactly_what_is_printed(walk: Walk) -> None:
    page = (ROOT / "docs/operating/tls.md").read_text(encoding="utf-8")
    told = list(blocks(page))
    assert len(told) == 7
    for name, lines in told:
        walk.see(name, lines)
    assert {name: terminal.end() for name, terminal in walk.terminals.items()} == {"first": 0, "second": 0}
