"""A group of ranks within one process, for tests of what goes over it; it can be cut at any operation.

Stricter than the real one: until a rank has waited for an operation, what will arrive is no number there, and what was
sent must stay as it was (H16).
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from pliant.train.group.contract import GroupBroken

PATIENCE_S = 60.0

Outcome = Callable[[int], Tensor]
"""What arrives at a rank, once every member has sent."""


class Wire:
    """The state that all ranks share. `cut_at` is the number of the first operation that fails."""

    def __init__(self, size: int, cut_at: int | None = None) -> None:
        self.size = size
        self.given: dict[int, dict[int, tuple[str, Tensor, list[int]]]] = {}
        self._cut_at = cut_at
        self._is_cut = False
        self._changed = threading.Condition()

    def cut(self) -> None:
        """From now on nothing that is not complete will be."""
        with self._changed:
            self._is_cut = True
            self._changed.notify_all()

    def give(self, number: int, rank: int, kind: str, data: Tensor, sending: list[int]) -> None:
        with self._changed:
            self.given.setdefault(number, {})[rank] = (kind, data, sending)
            self._changed.notify_all()

    def everybodys(self, number: int) -> list[tuple[str, Tensor, list[int]]]:
        """Return what all ranks gave to this operation, by rank."""
        with self._changed:
            whole = self._changed.wait_for(lambda: self._failed(number) or self._complete(number), PATIENCE_S)
            if self._failed(number):
                raise GroupBroken("cut")
            assert whole, f"operation {number} was begun by ranks {sorted(self.given[number])} of {self.size} only"
            given = self.given[number]
        kinds = {kind for kind, _, _ in given.values()}
        assert len(kinds) == 1, f"operation {number} is not the same on all ranks: {kinds}"
        return [given[rank] for rank in range(self.size)]

    def _failed(self, number: int) -> bool:
        if self._cut_at is not None and number >= self._cut_at:
            return True
        return self._is_cut and not self._complete(number)

    def _complete(self, number: int) -> bool:
        return len(self.given.get(number, {})) == self.size


class Going:
    """An operation that was begun here."""

    def __init__(self, wire: Wire, number: int, output: Tensor, outcome: Callable[[], Tensor], kept: Tensor) -> None:
        self._wire, self._number, self._output, self._outcome = wire, number, output, outcome
        self._sent, self._kept = kept, kept.clone()
        self._done = False

    def wait(self) -> None:
        if self._done:
            return
        arrived = self._outcome()
        assert same_bits(self._sent, self._kept), f"operation {self._number}: what is sent was changed"
        self._output.copy_(arrived)
        self._done = True


class Rank:
    """The part of a group that a reducer uses."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self.size, self.rank, self.wire = wire.size, rank, wire
        self.sent: list[int] = []  # how many numbers went into each operation, at the moment it was begun

    def all_reduce(self, tensor: Tensor) -> None:
        self.start_all_reduce(tensor).wait()

    def start_all_reduce(self, tensor: Tensor) -> Going:
        number = self._begin("sum", tensor)

        def outcome() -> Tensor:
            total, *others = (data for _, data, _ in self.wire.everybodys(number))
            total = total.clone()
            for data in others:
                total += data
            return total

        return self._going(number, tensor, outcome, tensor)

    def start_all_to_all(self, output: Tensor, data: Tensor, arriving: list[int], sending: list[int]) -> Going:
        number = self._begin("scatter", data, sending)

        def outcome() -> Tensor:
            found = [given[sum(to[: self.rank]) :][: to[self.rank]] for _, given, to in self.wire.everybodys(number)]
            assert [len(each) for each in found] == arriving
            return torch.cat(found)

        return self._going(number, output, outcome, data)

    def start_all_gather(self, output: Tensor, data: Tensor) -> Going:
        number = self._begin("gather", data)
        return self._going(
            number, output, lambda: torch.cat([each for _, each, _ in self.wire.everybodys(number)]), data
        )

    def break_off(self) -> None:
        self.wire.cut()

    def _begin(self, kind: str, data: Tensor, sending: list[int] | None = None) -> int:
        self.sent.append(data.numel())
        number = len(self.sent) - 1
        self.wire.give(number, self.rank, kind, data.clone(), sending or [])
        return number

    def _going(self, number: int, output: Tensor, outcome: Callable[[], Tensor], sent: Tensor) -> Going:
        output.fill_(float("nan") if output.is_floating_point() else -1)
        return Going(self.wire, number, output, outcome, sent)


def ranks(size: int, cut_at: int | None = None) -> list[Any]:
    """All ranks of a new group."""
    wire = Wire(size, cut_at)
    return [Rank(wire, rank) for rank in range(size)]


def together(*acts: Callable[[], Any]) -> list[Any]:
    """Return what each gives, all at once in threads of their own."""
    with ThreadPoolExecutor(len(acts)) as pool:
        return [future.result(timeout=3 * PATIENCE_S) for future in [pool.submit(act) for act in acts]]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether every bit is the same: zeros with other signs are not."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.contiguous().reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8))
