"""The interface between the reductions and the process group of a generation, gloo's or NCCL's."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from pliant.core.model.names import MemberId


class GroupBroken(Exception):
    """The group cannot be used any more. `peer` is the member where it broke, if known: a hint, not a proof."""

    def __init__(self, why: str, peer: MemberId | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.peer = peer


class PendingOperation(Protocol):
    """An operation in flight. Its tensors belong to the operation until `wait` returned or raised."""

    def wait(self) -> None:
        """Wait until the operation is done. Raise `GroupBroken` if it failed, once nothing touches its tensors."""


class TensorGroup(Protocol):
    """The ranks of one generation. All ranks must call the same operations in the same order.

    A world of one has no process group, and its operations change nothing.
    """

    generation: int
    rank: int
    size: int

    def all_reduce(self, tensor: Tensor) -> PendingOperation:
        """Start to sum `tensor` over all ranks, in place."""

    def all_to_all(self, output: Tensor, data: Tensor, arriving: list[int], sending: list[int]) -> PendingOperation:
        """Start to send each rank its stretch of `data`. Their stretches arrive in `output`, in order of rank."""

    def all_gather(self, output: Tensor, data: Tensor) -> PendingOperation:
        """Start to send `data` to every rank. All of it arrives in `output`, in order of rank, equally long."""

    def broadcast(self, tensor: Tensor, rank: int) -> PendingOperation:
        """Start to send the `tensor` of `rank` to every rank, where it arrives in `tensor`."""

    def gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of every rank, in order of rank. They may differ in length. Waits for all of them."""

    def barrier(self) -> None:
        """Wait until every rank has called it."""

    def break_off(self) -> None:
        """End every operation with an error, here and on every peer. Any thread may call it, repeatedly."""

    def dispose(self) -> None:
        """Dispose of the group, when no peer needs it any more (rule 9). Returns at once; open operations fail."""
