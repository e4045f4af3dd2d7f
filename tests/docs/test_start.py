"""Walks through the pages for newcomers: a training whose workers are killed, live and launched, in two terminals."""

import pytest

from docs.walking import Walk, blocks, general
from tidy.files import ROOT


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("page", "least"), [("start.md", 8), pytest.param("start-scripts.md", 3, marks=pytest.mark.long)]
)
def test_the_page_shows_exactly_what_is_printed(page: str, least: int, walk: Walk) -> None:
    shown = list(blocks((ROOT / "docs" / page).read_text(encoding="utf-8")))
    assert len(shown) >= least
    for name, lines in shown:
        walk.see(name, lines)
    assert {name: terminal.end() for name, terminal in walk.terminals.items()} == {"first": 0, "second": 0}


ROW = "vm-g1.0  active  0     vm     4242     0.95   202 MiB"


def test_which_process_it_is_may_not_change(walk: Walk) -> None:
    walk.see("first", [f"$ echo {ROW}", ROW.replace("4242", "1")])
    walk.see("second", [f"$ echo {ROW.replace('g1.0', '8.1')}", ROW.replace("4242", "1")])
    with pytest.raises(AssertionError, match="shown is"):
        walk.see("first", [f"$ echo {ROW.replace('4242', '4243')}", ROW.replace("4242", "1")])
    with pytest.raises(AssertionError, match="shown is"):
        walk.see("second", [f"$ echo {ROW}", ROW.replace("4242", "2")])


def test_a_generation_may_have_another_number_and_keeps_it(walk: Walk) -> None:
    walk.see(
        "first", ["$ echo world generation 4", "world generation 3", "$ echo world generation 6", "world generation 5"]
    )
    with pytest.raises(AssertionError, match="shown is"):
        walk.see("first", ["$ echo world generation 5", "world generation 3"])
    with pytest.raises(AssertionError, match="shown is"):
        walk.see("second", ["$ echo world generation 6", "world generation 7"])


def test_what_is_left_out_may_be_anything_and_what_is_shown_may_not(walk: Walk) -> None:
    walk.see("first", ["$ printf one\\ntwo\\nthree\\n", "...", "two", "three"])
    with pytest.raises(AssertionError, match="had not shown: four"):
        walk.see("second", ["$ printf one\\ntwo\\n", "...", "four"])


def test_a_slow_start_may_be_explained(walk: Walk) -> None:
    walk.see("first", ["$ printf [pliant]\\x2012:00:06\\x20waiting:\\x20no\\x20worker\\ntwo\\n", "two"])


def test_an_exit_status_is_shown(walk: Walk) -> None:
    walk.see("first", ["$ false", "$ echo $?", "1"])


def test_only_what_is_measured_may_differ() -> None:
    line = "[vm-g1.0] step 50 of 30000, 2 workers, loss 0.5017"
    assert general(line) == general(line.replace("50 ", "150 ").replace("0.5017", "0.0001").replace("g1.0", "8.3"))
    assert general(line) != general(line.replace("2 workers", "3 workers"))
    assert general(ROW) == general(ROW.replace("0.95", "-").replace("202 MiB", "-"))
    assert general(ROW) != general(ROW.replace("active", "spare"))
    audit = "9 samples in 3 committed steps, 0 lost, 0 repeated"
    assert general(audit) == general(audit.replace("9", "12"))
    assert general(audit) != general(audit.replace("0 lost", "1 lost"))
