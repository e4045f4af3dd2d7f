"""Worlds of several ranks within this process, for each implementation of the group contract.

To add an implementation, write a `GroupKind` and name it in `KINDS`. Every test of this folder then runs on it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pliant.core.data.ledger import Lineage
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind
from pliant.train.group.contract import Group, GroupWiring
from pliant.train.group.wiring import TcpWiring
from unit.train.pair import Talker, introduce, talkers

PATIENCE_S = 60.0
Array = npt.NDArray[Any]

_numbers = itertools.count(1)


@dataclass(frozen=True)
class GroupKind:
    """An implementation: how a rank wires it, and how its arrays are made of numpy's and read."""

    name: str
    wiring: Callable[[World, Talker], GroupWiring]
    own: Callable[[Array], Any] = lambda array: array
    plain: Callable[[Any], Array] = lambda array: array
    tls: bool = False


def _tcp(world: World, talker: Talker) -> GroupWiring:
    return TcpWiring(world, talker.name, talker.peers)


KINDS = (GroupKind("tcp", _tcp), GroupKind("tcp-tls", _tcp, tls=True))


@dataclass
class RankedWorld:
    """The ranks of one generation, each driven by a thread of its own."""

    kind: GroupKind
    world: World
    talkers: Sequence[Talker]
    threads: ThreadPoolExecutor
    wirings: list[GroupWiring] = field(default_factory=list)
    groups: list[Group[Any]] = field(default_factory=list)

    def wire(self) -> None:
        self.wirings = [self.kind.wiring(self.world, each) for each in self.talkers]
        ran: list[Any] = results([self.threads.submit(wiring.run) for wiring in self.wirings])
        self.groups = ran

    def start(self, act: Callable[[Group[Any], int], Any], ranks: Sequence[int] | None = None) -> list[Future[Any]]:
        """Let ranks act at the same time, all of them or those named."""
        chosen = range(len(self.groups)) if ranks is None else ranks
        return [self.threads.submit(act, self.groups[rank], rank) for rank in chosen]

    def all(self, act: Callable[[Group[Any], int], Any]) -> list[Any]:
        return results(self.start(act))

    def sums(self, arrays: Sequence[Array]) -> list[Array]:
        """Return what each rank has after an all-reduce of its array."""

        def reduce(group: Group[Any], rank: int) -> Array:
            mine = self.kind.own(arrays[rank].copy())
            group.all_reduce(mine)
            return self.kind.plain(mine)

        return self.all(reduce)


def results(futures: Sequence[Future[Any]]) -> list[Any]:
    return [future.result(PATIENCE_S) for future in futures]


@contextmanager
def ranked_world(kind: GroupKind, size: int) -> Iterator[RankedWorld]:
    """Yield a world that is introduced, but not wired."""
    number = next(_numbers)
    with talkers(tls=kind.tls) as make, ThreadPoolExecutor(size + 4) as threads:
        members = [make(f"m{rank}") for rank in range(size)]
        introduce(number, *members)
        names = tuple(MemberId(each.name) for each in members)
        record = World(number, WorldKind.PLANNED, names, (1,) * size, Lineage(0, 0, 0))
        ranks = RankedWorld(kind, record, members, threads)
        try:
            yield ranks
        finally:
            for wiring in ranks.wirings:
                wiring.break_off()
            for group in ranks.groups:
                group.dispose()


@contextmanager
def wired_world(kind: GroupKind, size: int) -> Iterator[RankedWorld]:
    with ranked_world(kind, size) as ranks:
        ranks.wire()
        yield ranks


def in_order(arrays: Sequence[Array]) -> Array:
    """Return the sum in the order of ranks."""
    total = arrays[0].copy()
    for each in arrays[1:]:
        total = total + each
    return total


def drawn(size: int, length: int, dtype: str, seed: int = 0) -> list[Array]:
    """Return arrays of different magnitudes, whose sum depends on the order of addition."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((size, length)) * 10.0 ** generator.integers(-6, 7, (size, length))
    return [row.astype(dtype) for row in values]


def threads_named(*prefixes: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefixes)]
