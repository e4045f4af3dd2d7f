"""Several trainings at a time, each lane a process of its own: one that forks must not have threads of another's."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bits.pieces import Piece, Row, run
from schedules.messages import die_with_parent

LIMIT_S = 600.0  # for the next row to come, whatever happens


def rows(chosen: list[Piece], folder: Path, lanes: int) -> Iterator[Row]:
    """Rows as they are done."""
    with get_context("spawn").Pool(lanes, _begin) as pool:
        done = pool.imap_unordered(partial(run, base=folder), chosen)
        for _ in chosen:
            yield done.next(LIMIT_S)


def _begin() -> None:
    die_with_parent()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent has it, and ends us


def _end(*_: object) -> None:
    """Leave through every `finally`, so that nothing is left. A second signal does not interrupt that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)
