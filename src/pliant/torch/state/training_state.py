"""The whole state of a training run in PyTorch: captured for a donor or a checkpoint, and installed."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pliant.errors import BadInput
from pliant.torch.reduce.buckets import ReducedGradient
from pliant.torch.state.buffers import Buffers
from pliant.torch.state.gpu_copy import copy_on_gpu
from pliant.torch.state.gpu_share import GpuMemory
from pliant.torch.state.hyperparameters import Hyperparameters
from pliant.torch.state.tensor_hash import tensors_hash
from pliant.torch.state.tensors import as_leaf, content_of, from_leaf, kind_of
from pliant.train.state.flat import Leaf, LeafOutline, State, flatten, restore
from pliant.train.state.memory import allocate
from pliant.train.state.transfer import ReceivedState


class Stateful(Protocol):
    """Anything with `state_dict` and `load_state_dict`: a scheduler, an average of the weights, a counter."""

    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state_dict: Any) -> object: ...


@dataclass(frozen=True, slots=True)
class StateOutline:
    """A state's small values, encoded, and its live tensors."""

    tree: bytes
    tensors: list[Tensor]

    def hash(self) -> int:
        """Return a hash of every bit of the state."""
        return tensors_hash(self.tensors, self.tree)


class TrainingState:
    """Model, optimizers, scaler and the objects named in `state=`."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        buffers: Buffers,
        others: Mapping[str, Stateful],
    ) -> None:
        self._model = model
        self._optimizers = optimizers
        self.buffers = buffers
        self._others = others
        self.hyperparameters = Hyperparameters(optimizers, others)

    def capture(self) -> State:
        """Return the state of the last boundary, in live memory. Any thread may call it until the next apply."""
        return flatten(self._value(), as_leaf)

    def layout(self) -> tuple[bytes, list[Tensor]]:
        """Return the state's tree and its live tensors, in the order of the tree, without copying."""
        tensors: list[Tensor] = []

        def note(value: object) -> Leaf | None:
            if not isinstance(value, Tensor):
                return None
            tensors.append(value)
            return LeafOutline(
                kind_of(value), tuple(value.shape), memoryview(b""), value.numel() * value.element_size()
            )

        return flatten(self._value(), note).tree, tensors

    def content(self, tensor: Tensor) -> memoryview:
        """Return a tensor's bytes: live ones on the CPU, a copy of those on a GPU."""
        return content_of(tensor)

    def shared_memory(self) -> GpuMemory | None:
        """Return the memory of the model's GPU, in which processes of this machine share copies; None on a CPU."""
        device = next((param.device for param in self._model.parameters()), torch.device("cpu"))
        return GpuMemory(device) if device.type == "cuda" and torch.version.cuda else None

    def outline(self) -> StateOutline:
        """Return an outline to hash now or later: the current small values, and the live tensors."""
        tensors: list[Tensor] = []

        def note(value: object) -> Leaf | None:
            if not isinstance(value, Tensor):
                return None
            tensors.append(value)
            return Leaf(str(value.dtype), tuple(value.shape), memoryview(b""))

        tree = flatten(self._value(), note).tree
        return StateOutline(tree, tensors)

    def contents(self, arrays: Sequence[Tensor]) -> tuple[list[Callable[[], memoryview]], bool]:
        """Return functions that fetch the bytes of tensors, and whether these bytes stay as they are now."""
        aside = copy_on_gpu(arrays)
        if aside is not None:
            return aside, True
        return [partial(content_of, tensor) for tensor in arrays], False

    def copy(self, content: memoryview) -> memoryview:
        """Copy with torch, which uses several threads and releases the interpreter lock."""
        if not content.nbytes:
            return content
        room = torch.frombuffer(allocate(content.nbytes), dtype=torch.uint8, count=content.nbytes)
        room.copy_(torch.frombuffer(content, dtype=torch.uint8))
        return room.numpy().data

    def choose_hyperparameters(self, *, from_script: bool) -> list[str]:
        """Use the script's hyperparameters or those just installed, and describe where they differ."""
        changes = self.hyperparameters.changes()
        if from_script:
            self.hyperparameters.apply(changes)
        return self.hyperparameters.describe(changes, applied=from_script)

    def _value(self) -> dict[str, Any]:
        tensors: dict[str, Tensor] = {name: param.detach() for name, param in self._model.named_parameters()}
        for name, buffer in self._model.named_buffers():
            base = self.buffers.at_boundary(name)
            tensors[name] = buffer if base is None else base
        return {
            "model": tensors,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "others": {name: other.state_dict() for name, other in self._others.items()},
            "moving": self.buffers.moving,
        }

    def install(self, received: ReceivedState) -> None:
        """Install a received state, which was verified before."""
        own: dict[str, Tensor] = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        device = next(iter(own.values())).device
        value = restore(received.tree, received.contents, partial(from_leaf, device=device))
        if own.keys() != value["model"].keys():
            raise BadInput("The received state belongs to another model. Start every member with the same script.")
        with torch.no_grad():
            for name, tensor in value["model"].items():
                own[name].copy_(tensor)
        for optimizer, saved in zip(self._optimizers, value["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
            _put_back_types(optimizer, saved)
        for name, other in self._others.items():
            other.load_state_dict(value["others"][name])
        self.buffers.learn(value["moving"])

    def fingerprint(self) -> int:
        """Return a hash of the rates, which user code most often changes by mistake on one member alone.

        Every control word carries it, so members that differ are stopped in the next step.
        """
        rates: list[float] = []
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                rates += [float(group[key]) for key in ("lr", "momentum", "weight_decay") if group.get(key) is not None]
        return _rates_hash(struct.pack(f"<{len(rates)}d", *rates))


@lru_cache(maxsize=8)
def _rates_hash(packed: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8, person=b"pliant rates").digest(), "little")


def _put_back_types(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Restore optimizer values whose type differs from their parameter's: torch casts them, which changes the bits."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for index, kept in saved["state"].items():
        for key, value in kept.items():
            loaded = optimizer.state[params[index]].get(key)
            if isinstance(value, Tensor) and isinstance(loaded, Tensor) and loaded.dtype != value.dtype:
                optimizer.state[params[index]][key] = value.to(loaded.device)


def moving_buffers(received: ReceivedState) -> Sequence[str] | None:
    """Return the moving buffers in a received state. A joiner needs them to follow the others' reductions."""
    moving: Sequence[str] | None = restore(received.tree, received.contents, lambda *_: None)["moving"]
    return moving


def gradient_state(reduced: ReducedGradient) -> State:
    """Return a step's reduced gradient as a state, to send to a member that missed the step (rule 13)."""
    return flatten(
        {
            "buckets": reduced.buckets,
            "buffers": reduced.buffers,
            "marks": reduced.marks,
            "weight": reduced.weight,
            "means": reduced.means,
        },
        as_leaf,
    )


def gradient_from(received: ReceivedState, device: torch.device) -> ReducedGradient:
    value = restore(received.tree, received.contents, from_leaf)
    buckets = [bucket.to(device) for bucket in value["buckets"]]
    return ReducedGradient(buckets, value["buffers"].to(device), value["marks"], value["weight"], means=value["means"])
