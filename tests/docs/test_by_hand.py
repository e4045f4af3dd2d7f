"""Walks through docs/operating/by-hand.md: a coordinator that is killed, and a watch that misses nothing."""

import pytest

from docs.walking import Walk, blocks, general
from tidy.files import ROOT


def test_the_page_shows_exactly_what_is_printed(walk: Walk) -> None:
    walk.by_hand()
    page = (ROOT / "docs/operating/by-hand.md").read_text(encoding="utf-8")
    told = list(blocks(page))
    assert len(told) >= 10
    for name, lines in told:
        walk.see(name, lines)
    assert {name: terminal.end() for name, terminal in walk.terminals.items()} == {"first": 0, "second": 0, "third": 0}


def test_a_page_that_shows_something_else_is_found(walk: Walk) -> None:
    with pytest.raises(AssertionError, match="shown is 'one', and not 'two'"):
        walk.see("first", ["$ echo one", "two"])
    with pytest.raises(AssertionError, match="more was printed"):
        walk.see("second", ["$ echo one", "$ echo two"])


def test_only_times_and_numbers_may_differ() -> None:
    line = "2026-11-15 12:00:05      1  job demo created: 2 to 4 workers, 4 wanted"
    assert general(line) == general(line.replace("12:00:05", "23:59:59"))
    assert general(line) != general(line.replace("      1 ", "      2 "))
    assert general(line) != general(line.replace("2 to 4", "2 to 5"))
    assert general("Store: x (25c8adb4, 1 job)") == general("Store: x (00000000, 1 job)")
    assert general("Store: x (25c8adb4, 1 job)") != general("Store: x (25c8adb4, 0 jobs)")
    assert list(blocks("```console a\n$ x\ny\n```\n```\nz\n```\n")) == [("a", ["$ x", "y"])]
