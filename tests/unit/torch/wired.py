"""Real groups with all their ranks in this process."""

from collections.abc import Iterator
from contextlib import contextmanager

from pliant.core.data.ledger import Lineage
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind
from pliant.torch.group.tcp import TensorTcpGroup, TensorTcpWiring
from unit.torch.wires import together
from unit.train.pair import introduce, talkers


@contextmanager
def wired(size: int) -> Iterator[list[TensorTcpGroup]]:
    """All ranks of a world, by rank; at the end nothing is left of it."""
    with talkers() as make:
        members = [make(f"m{rank}") for rank in range(size)]
        introduce(1, *members)
        names = tuple(MemberId(each.name) for each in members)
        world = World(1, WorldKind.PLANNED, names, (1,) * size, Lineage(0, 0, 0))
        groups: list[TensorTcpGroup] = together(
            *(TensorTcpWiring(world, each.name, each.peers).run for each in members)
        )
        try:
            yield groups
        finally:
            for group in groups:
                group.dispose()
