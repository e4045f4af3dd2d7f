"""Real groups with all their ranks in this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pliant.core.data.ledger import Lineage
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind
from pliant.torch.gloo.group import GlooGroup
from pliant.torch.gloo.wiring import GlooWiring
from pliant.train.peer.kv import PeerValues
from unit.torch.wires import together

PATIENCE_S = 30.0


class ToTheOthers:
    """Tells peers that are in this process, without a wire."""

    def __init__(self, boxes: dict[MemberId, PeerValues]) -> None:
        self._boxes = boxes

    def notify(self, generation: int, member: MemberId, kind: str, head: bytes) -> None:
        self._boxes[member].receive(generation, head)


def wire_up(size: int) -> list[GlooGroup]:
    """All ranks of a new world, by rank."""
    names = [MemberId(f"m{rank}") for rank in range(size)]
    world = World(1, WorldKind.PLANNED, tuple(names), (1,) * size, Lineage(0, 0, 0))
    boxes = {name: PeerValues() for name in names}
    wirings = [GlooWiring(world, "ab" * 32, name, ToTheOthers(boxes), boxes[name]) for name in names]
    return together(*(wiring.run for wiring in wirings))


@contextmanager
def wired(size: int) -> Iterator[list[GlooGroup]]:
    """All ranks of a world, by rank; at the end nothing is left of it."""
    groups = wire_up(size)
    try:
        yield groups
    finally:
        for group in groups:
            group.dispose()
        for each in threading.enumerate():
            if each.name == "pliant-dispose":
                each.join(PATIENCE_S)
                assert not each.is_alive()
