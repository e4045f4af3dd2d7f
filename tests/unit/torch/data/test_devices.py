"""Batches on their way to the device: every tensor moves, everything else stays what it is."""

import dataclasses
from collections import OrderedDict, UserDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from pliant.torch.data.devices import move_to_device

META = torch.device("meta")  # a device that every machine has and that is not the CPU
Pair = namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass(frozen=True)
class Example:
    x: torch.Tensor
    name: str
    length: int = dataclasses.field(init=False, default=3)


class Own:
    """A batch type of the user's that knows how to move."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: torch.device) -> "Own":
        return Own(self.x.to(device))


def devices(data: Any) -> set[str]:
    """The devices of all tensors inside."""
    match data:
        case torch.Tensor():
            return {data.device.type}
        case Own() | Example():
            return {data.x.device.type}
        case PackedSequence():
            return {data.data.device.type}
        case dict() | UserDict():
            return set().union(*map(devices, data.values()))
        case list() | tuple():
            return set().union(*map(devices, data))
        case _:
            return set()


@pytest.mark.parametrize(
    "data",
    [
        torch.ones(2),
        [torch.ones(2), 3, "x", None],
        (torch.ones(2), (torch.ones(1),)),
        {"x": torch.ones(2), "y": [torch.ones(1)]},
        OrderedDict(x=torch.ones(2)),
        UserDict(x=torch.ones(2)),
        Pair(torch.ones(2), "right"),
        Example(torch.ones(2), "name"),
        Own(torch.ones(2)),
        pack_sequence([torch.ones(3), torch.ones(2)]),
    ],
    ids=lambda data: type(data).__name__,
)
def test_tensors_move_and_containers_stay_what_they_are(data: Any) -> None:
    there = move_to_device(data, META)
    assert type(there) is type(data)
    assert devices(there) == {"meta"}
    assert devices(data) == {"cpu"}


def test_what_is_no_tensor_is_left_alone() -> None:
    array = np.ones(2)
    thing = object()
    there = move_to_device([array, thing, "text", b"octets", 1, 2.5, None, Example], META)
    assert there[0] is array
    assert there[1] is thing
    assert there[2:] == ["text", b"octets", 1, 2.5, None, Example]


def test_a_frozen_dataclass_keeps_its_other_fields() -> None:
    there = move_to_device(Example(torch.ones(2), "name"), META)
    assert (there.name, there.length) == ("name", 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory is for copies to a GPU")
def test_pinned_batches_arrive_too() -> None:
    there = move_to_device([torch.arange(5), {"x": torch.ones(3)}], torch.device("cuda"), pin=True)
    assert devices(there) == {"cuda"}
    assert there[0].tolist() == [0, 1, 2, 3, 4]
