"""Objects between a member and its data workers: they arrive as they were, and leave nothing behind."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pliant.torch.data.shared_memory import receive, send
from pliant.train.data.loader import MicroBatch, SampleError

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def sent(ends: Ends, thing: Any) -> Any:
    send(ends[0], thing)
    return receive(ends[1])


PICTURES = torch.arange(48.0).reshape(2, 2, 3, 4)
TENSORS = {
    "plain": torch.arange(6).reshape(2, 3),
    "one number": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "bool": torch.tensor([True, False]),
    "bfloat16": torch.tensor([1.5, -2.0]).bfloat16(),
    "complex": torch.tensor([1 + 2j]),
    "conjugated": torch.tensor([1 + 2j]).conj(),
    "a slice": torch.arange(20)[3:15:2],
    "expanded": torch.ones(3, 1).expand(3, 5),
    "transposed": torch.arange(6).reshape(2, 3).t(),
    "channels last": PICTURES.to(memory_format=torch.channels_last),
    "large": torch.arange(3_000_000),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_arrives_as_it_was(ends: Ends, kind: str) -> None:
    tensor = TENSORS[kind]
    there = sent(ends, tensor)
    assert there.dtype == tensor.dtype
    assert torch.equal(there, tensor)


@pytest.mark.parametrize("kind", ["transposed", "channels last"])
def test_a_tensor_keeps_its_layout_in_memory(ends: Ends, kind: str) -> None:
    assert sent(ends, TENSORS[kind]).stride() == TENSORS[kind].stride()


def test_what_arrives_can_be_written_to(ends: Ends) -> None:
    tensor, array = sent(ends, (torch.zeros(3), np.zeros(3)))
    tensor += 1
    array += 1
    assert tensor.tolist() == array.tolist() == [1, 1, 1]


def test_other_tensors_arrive_by_value(ends: Ends) -> None:
    sparse, parameter, wanting = sent(
        ends, (torch.eye(3).to_sparse(), torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True))
    )
    assert torch.equal(sparse.to_dense(), torch.eye(3))
    assert isinstance(parameter, torch.nn.Parameter)
    assert wanting.requires_grad


def test_the_same_tensor_twice_is_one_tensor_there(ends: Ends) -> None:
    tensor = torch.ones(2)
    one, other = sent(ends, [tensor, tensor])
    assert one is other


@pytest.mark.parametrize(
    "thing",
    [
        {"a": [1, "two", None, (3.0,)]},
        MicroBatch(3, (1, 2)),
        {"names": [f"sample {number}" for number in range(50_000)]},
        b"",
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_anything_else_arrives_too(ends: Ends, thing: Any) -> None:
    assert sent(ends, thing) == thing


def test_arrays_arrive_with_their_shape(ends: Ends) -> None:
    array = np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2)
    there = sent(ends, {"x": array, "text": np.array(["a", "bc"])})
    assert np.array_equal(there["x"], array)
    assert there["text"].tolist() == ["a", "bc"]


def test_an_error_arrives_with_its_place(ends: Ends) -> None:
    error = sent(ends, SampleError(MicroBatch(4, (1, 2)), (2,), (77,), "KeyError: 3"))
    assert isinstance(error, SampleError)
    assert (error.micro_batch, error.slot, error.sample, error.trace) == (MicroBatch(4, (1, 2)), 2, 77, "KeyError: 3")


def test_parcels_arrive_in_the_order_they_were_sent(ends: Ends) -> None:
    for number in range(20):
        send(ends[0], torch.full((10,), number))
    assert [int(receive(ends[1])[0]) for _ in range(20)] == list(range(20))


def test_a_sender_that_is_gone_does_not_matter(ends: Ends) -> None:
    send(ends[0], torch.arange(1000))
    ends[0].close()
    assert receive(ends[1]).sum() == 499_500
    assert receive(ends[1]) is None


def test_a_closed_end_is_told_to_the_sender(ends: Ends) -> None:
    ends[1].close()
    with pytest.raises(BrokenPipeError):
        send(ends[0], 1)


def test_a_parcel_without_its_memory_says_why(ends: Ends) -> None:
    ends[0].send(b"p")  # what arrives when the receiver may open no more files
    with pytest.raises(OSError, match="too many files are open"):
        receive(ends[1])


def test_no_descriptor_no_thread_and_no_file_is_left(ends: Ends) -> None:
    def held() -> tuple[int, int, list[Path]]:
        own = list(Path("/dev/shm").glob(f"*_{os.getpid()}_*"))  # as torch names them
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), own

    before = held()
    kept = [sent(ends, [torch.ones(1000), np.ones(1000), torch.eye(3).to_sparse()]) for _ in range(50)]
    assert held() == before
    assert len(kept) == 50


def test_what_cannot_be_pickled_is_an_error_and_sends_nothing(ends: Ends) -> None:
    with pytest.raises((AttributeError, TypeError)):
        send(ends[0], lambda: 1)
    assert sent(ends, "next") == "next"
