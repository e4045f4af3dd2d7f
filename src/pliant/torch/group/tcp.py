"""The TCP group of one generation, for tensors. Tensors in host memory are sent as they are, others through a copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pliant.core.model.names import MemberId
from pliant.core.model.world import World
from pliant.train.group.contract import PendingOperation
from pliant.train.group.tcp import Array, TcpGroup
from pliant.train.group.wiring import PeerStreams, TcpWiring


class StagedPending:
    """An operation on a copy in host memory of a tensor on another device."""

    def __init__(self, pending: PendingOperation, host: Array, tensor: Tensor) -> None:
        self._pending = pending
        self._host = host
        self._tensor = tensor

    def wait(self) -> None:
        self._pending.wait()
        _copy_back(self._host, self._tensor)


class TensorTcpGroup:
    """The ranks of one generation."""

    def __init__(self, group: TcpGroup) -> None:
        self._group = group
        self.generation = group.generation
        self.rank = group.rank
        self.size = group.size

    def all_reduce(self, tensor: Tensor) -> None:
        host = _array(tensor)
        self._group.all_reduce(host)
        _copy_back(host, tensor)

    def start_all_reduce(self, tensor: Tensor) -> PendingOperation:
        host = _array(tensor)
        return _staged(self._group.start_all_reduce(host), host, tensor)

    def start_all_to_all(
        self, output: Tensor, data: Tensor, arriving: list[int], sending: list[int]
    ) -> PendingOperation:
        host = _array(output)
        return _staged(self._group.start_all_to_all(host, _array(data), arriving, sending), host, output)

    def start_all_gather(self, output: Tensor, data: Tensor) -> PendingOperation:
        host = _array(output)
        return _staged(self._group.start_all_gather(host, _array(data)), host, output)

    def gather(self, data: bytes) -> list[bytes]:
        return self._group.gather(data)

    def barrier(self) -> None:
        self._group.barrier()

    def break_off(self) -> None:
        self._group.break_off()

    def dispose(self) -> None:
        self._group.dispose()


class TensorTcpWiring:
    """The construction of one generation's group for tensors."""

    def __init__(self, world: World, me: MemberId, peers: PeerStreams | None) -> None:
        self._wiring = TcpWiring(world, me, peers)

    def run(self) -> TensorTcpGroup:
        return TensorTcpGroup(self._wiring.run())

    def break_off(self) -> None:
        self._wiring.break_off()


def _array(tensor: Tensor) -> Array:
    """Return the tensor's memory as an array, or a copy in host memory."""
    found: Any = tensor.detach()
    return found.numpy() if found.device.type == "cpu" else found.cpu().numpy()  # type: ignore[no-any-return]


def _staged(pending: PendingOperation, host: Array, tensor: Tensor) -> PendingOperation:
    return pending if tensor.device.type == "cpu" else StagedPending(pending, host, tensor)


def _copy_back(host: Array, tensor: Tensor) -> None:
    if tensor.device.type != "cpu":
        tensor.detach().copy_(torch.from_numpy(host))
