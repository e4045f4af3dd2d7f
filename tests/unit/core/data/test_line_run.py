"""Runs of ledger lines: values that grow in constant time."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from pliant.core.data.ledger import GENESIS, LedgerLine, make_line
from pliant.core.data.line_run import LineRun
from pliant.core.data.sample_order import Cursor


def lines(count: int) -> tuple[LedgerLine, ...]:
    made: list[LedgerLine] = []
    for step in range(1, count + 1):
        made.append(make_line(made[-1].lineage if made else GENESIS, 1, step, Cursor(0, 0), 1, step))
    return tuple(made)


SOME = lines(8)


def test_a_run_equals_the_tuple_of_its_lines_and_reads_like_it() -> None:
    run = LineRun(SOME)
    assert run == SOME
    assert run == LineRun(SOME)
    assert run != SOME[:-1]
    assert run != LineRun(SOME[1:])
    assert run != "lines"
    assert (run[0], run[-1], run[2:4], run[:-1], tuple(run)) == (SOME[0], SOME[-1], SOME[2:4], SOME[:-1], SOME)
    assert repr(LineRun(SOME[:1])) == f"LineRun([{SOME[0]!r}])"
    with pytest.raises(IndexError):
        LineRun()[0]


def test_every_version_keeps_its_lines_whatever_is_made_of_it() -> None:
    chance = random.Random(7)
    versions: list[tuple[LineRun, tuple[LedgerLine, ...]]] = [(LineRun(), ())]
    for _ in range(300):
        run, wanted = chance.choice(versions[-20:])
        if chance.random() < 0.7:
            line = chance.choice(SOME)
            versions.append((run.added(line), (*wanted, line)))
        else:
            count = chance.randrange(4)
            versions.append((run.without_first(count), wanted[count:]))
    for run, wanted in versions:
        assert run == wanted


def test_lines_are_added_and_dropped_without_copying_the_others() -> None:
    """Appending in place and dropping by a window: the list behind consecutive runs is one object."""
    runs = [LineRun()]
    for line in lines(2000):
        runs.append(runs[-1].added(line))
    assert all(a._lines is b._lines for a, b in pairwise(runs))
    assert runs[-1].without_first(512)._lines is runs[-1]._lines
    assert len(runs[-1].without_first(1500)._lines) == 500
