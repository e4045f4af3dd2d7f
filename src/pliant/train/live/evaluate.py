"""Evaluate a data set on all members: each sample once, with the same totals on every member.

The data is cut into batches that do not depend on the world. Every member computes a share of them and sends the totals
of each batch to the others. They are added in order of the batch number, so the result is the same on every member and
for every size of the world. If a batch's owner is slow, gone or has another state, a waiting member computes the batch
itself. Computing it twice costs time and changes nothing, since a batch's totals depend on the state alone. There is no
collective, so a failing member delays no other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pliant.core.data.grid import deal_slots
from pliant.core.data.ledger import Lineage
from pliant.errors import BadInput
from pliant.train.data.loader import step_seed
from pliant.train.session import Session

BATCH_TOTALS = "totals"
KEPT_MAX = 64  # evaluations whose totals are kept: a member may lag behind the others
NUMBERS_MAX = 1 << 16  # in the totals of one batch
PATIENCE = 3.0  # wait this many times the mean time of a batch before computing another member's batch
PATIENCE_MIN_S = 0.5

Totals = dict[str, Any]
Numbers: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EvaluationId:
    """An evaluation's identity: the state, the ordinal since that state, the samples and the batch size."""

    lineage: Lineage
    turn: int
    samples: int
    batch: int


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """The totals of one batch: by name, a shape and the numbers."""

    key: EvaluationId
    number: int
    values: dict[str, tuple[tuple[int, ...], tuple[float, ...]]]


class EvaluationResults:
    """Received and computed totals, by evaluation and batch. Peers may be ahead of this member."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._totals: dict[EvaluationId, dict[int, BatchTotals]] = {}
        self._current: EvaluationId | None = None

    def receive(self, head: bytes) -> None:
        self.add(msgspec.msgpack.decode(head, type=BatchTotals))

    def add(self, totals: BatchTotals) -> None:
        with self._news:
            if totals.key not in self._totals and len(self._totals) >= KEPT_MAX:
                del self._totals[next(key for key in self._totals if key != self._current)]
            self._totals.setdefault(totals.key, {}).setdefault(totals.number, totals)
            self._news.notify_all()

    def start(self, key: EvaluationId) -> None:
        """Start an evaluation: keep its totals, however far ahead the others are, and drop those of older ones."""
        with self._news:
            past = [each for each in self._totals if each.lineage.step < key.lineage.step]
            for each in past:
                del self._totals[each]
            self._current = key

    def has(self, key: EvaluationId, number: int) -> bool:
        with self._news:
            return number in self._totals.get(key, {})

    def count(self, key: EvaluationId) -> int:
        with self._news:
            return len(self._totals.get(key, ()))

    def batches(self, key: EvaluationId) -> dict[int, BatchTotals]:
        with self._news:
            return dict(self._totals.get(key, {}))

    def wait_for_more(self, key: EvaluationId, known: int, timeout_s: float) -> bool:
        """Wait until there are more than `known` batches. Return False on a timeout."""
        with self._news:
            return self._news.wait_for(lambda: len(self._totals.get(key, {})) > known, timeout_s)


class Evaluation:
    """One evaluation on one member."""

    def __init__(
        self,
        session: Session,
        results: EvaluationResults,
        send: Callable[[bytes], None],
        key: EvaluationId,
        compute: Callable[[int], BatchTotals],
        note_progress: Callable[[], None],
    ) -> None:
        self._session = session
        self._results = results
        self._send = send
        self._key = key
        self._compute = compute
        self._note_progress = note_progress
        self._count = -(-key.samples // key.batch)
        self._computed = 0  # batches, by this member
        self._spent_s = 0.0  # on all of them

    def run(self) -> Totals:
        self._results.start(self._key)
        machine = self._session.machine
        size = len(machine.world.members) if machine.world else 1
        mine = deal_slots(self._count, [1] * size)[max(machine.rank, 0)]
        for number in mine:
            self._do(number)
        for number in (*range(mine.stop, self._count), *range(mine.stop)):
            self._await(number)
        return _total(self._results.batches(self._key), self._count)

    def _await(self, number: int) -> None:
        """Return once a batch is there. Compute it if no batch at all arrives for long enough."""
        while True:
            known = self._results.count(self._key)
            if self._results.has(self._key, number):
                return
            self._note_progress()
            if not self._results.wait_for_more(self._key, known, self._patience_s()):
                self._do(number)

    def _patience_s(self) -> float:
        """Return the time to wait for peers: none if the world is breaking up."""
        if self._session.machine.stop_reason:
            return 0.0
        mean_s = self._spent_s / self._computed if self._computed else 0.0
        return max(PATIENCE * mean_s, PATIENCE_MIN_S)

    def _do(self, number: int) -> None:
        if self._results.has(self._key, number):
            return
        began = time.monotonic()
        totals = self._compute(number)
        self._note_progress()
        self._spent_s += time.monotonic() - began
        self._computed += 1
        self._results.add(totals)
        self._send(msgspec.msgpack.encode(totals))


def compute_batch(
    key: EvaluationId,
    number: int,
    fn: Callable[[Any], Mapping[str, Any]],
    read: Callable[[range, int], Any],
    as_array: Callable[[Any], Numbers],
) -> BatchTotals:
    """Compute one batch with the user's function.

    `read` returns the samples of a range, and seeds the generators with a key first: every member that computes this
    batch draws the same numbers.
    """
    samples = range(number * key.batch, min((number + 1) * key.batch, key.samples))
    got = fn(read(samples, step_seed(key.turn, key.lineage.step, number)))
    if not isinstance(got, Mapping):
        raise BadInput(
            f"The function given to run.evaluate must return a dictionary of sums, not {type(got).__name__}."
        )
    values = {}
    for name, value in got.items():
        array = as_array(value)
        values[str(name)] = (tuple(array.shape), tuple(array.reshape(-1).tolist()))
    if (count := sum(len(numbers) for _, numbers in values.values())) > NUMBERS_MAX:
        raise BadInput(f"The sums of a batch are {count} numbers. At most {NUMBERS_MAX} are supported.")
    return BatchTotals(key, number, values)


def _total(batches: dict[int, BatchTotals], count: int) -> Totals:
    """Add the batches in order, in double precision: the same bits on every member."""
    totals: dict[str, Numbers] = {}
    for number in range(count):
        for name, (shape, numbers) in batches[number].values.items():
            value = np.array(numbers, dtype=np.float64).reshape(shape)
            totals[name] = totals[name] + value if name in totals else value
    return {name: value.item() if not value.shape else value for name, value in totals.items()}
