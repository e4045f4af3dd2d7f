"""The contract of a process group, whatever carries it: `tcp` for host memory, NCCL for GPUs.

wiring = TcpWiring(world, member, peers)
group = wiring.run()                # in a background thread, while the generation before trains
pending = group.start_all_reduce(x) # returns at once: for an overlap with backward
pending.wait()                      # raises GroupBroken once nothing touches `x`
group.all_reduce(y)                 # waits itself, which is faster than a start and a wait
group.break_off()                   # any thread: every operation returns, here and on every peer
group.dispose()

What every implementation keeps, and `tests/contract/group` checks:

- All ranks call the same operations in the same order. Operations are carried out in that order.
- Every rank ends an all-reduce with the same bits, and the same inputs in the same world give the same bits again.
- After `break_off` every operation of this process returns within milliseconds, and no later one starts.
- Nothing touches the arrays of an operation any more once it returned or raised.
- No time limit ends an operation: a rank that is late is waited for. Only a closed connection, a machine that does not
  answer, or `break_off` ends a group.
- `dispose` returns at once and leaves no thread or socket behind, and no memory but what the next group uses again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from pliant.core.model.names import MemberId
from pliant.core.model.world import World

Arrays = TypeVar("Arrays", contravariant=True)  # numpy's arrays in host memory, or a framework's tensors


class GroupBroken(Exception):
    """The group cannot be used any more. `peer` is the member where it broke, if known: a hint, not a proof."""

    def __init__(self, why: str, peer: MemberId | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.peer = peer


class PendingOperation(Protocol):
    """An operation in flight. Its arrays belong to the operation until `wait` returned or raised."""

    def wait(self) -> None:
        """Wait until the operation is done. Raise `GroupBroken` if it failed, once nothing touches its arrays."""


class CollectiveGroup(Protocol):
    """The part of a group that the session uses (rules 7-10)."""

    def break_off(self) -> None:
        """End every operation with `GroupBroken`, here and on every peer. Any thread may call it, repeatedly."""

    def dispose(self) -> None:
        """Release the group, when no peer needs it any more (rule 9). Returns at once; open operations fail."""


class Group(CollectiveGroup, Protocol[Arrays]):
    """The ranks of one generation. A world of one has no connections, and its operations change nothing."""

    generation: int
    rank: int
    size: int

    def all_reduce(self, array: Arrays) -> None:
        """Sum `array` over all ranks, in place, after all operations that were started before."""

    def start_all_reduce(self, array: Arrays) -> PendingOperation:
        """Start to sum `array` over all ranks, in place, while this thread does something else."""

    def start_all_to_all(
        self, output: Arrays, data: Arrays, arriving: list[int], sending: list[int]
    ) -> PendingOperation:
        """Start to send each rank its stretch of `data`. Their stretches arrive in `output`, in order of rank."""

    def start_all_gather(self, output: Arrays, data: Arrays) -> PendingOperation:
        """Start to send `data` to every rank. All of it arrives in `output`, in order of rank, equally long.

        `data` may be this rank's own stretch of `output`.
        """

    def gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of every rank, in order of rank. They may differ in length. Waits for all of them."""

    def barrier(self) -> None:
        """Wait until every rank has called it."""


class GroupWiring(Protocol):
    """The construction of one group."""

    def run(self) -> CollectiveGroup:
        """Build the group and complete a barrier in it. Raises if that fails or was broken off."""

    def break_off(self) -> None:
        """Make `run` return with an error. Any thread may call it."""


StartWiring = Callable[[World, str], GroupWiring]
"""Takes the world and its key. The key is empty for a world of one."""
