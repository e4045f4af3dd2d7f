"""The library that reduces gradients: by the model's device, and by the script's wish."""

import pytest
import torch

from pliant.errors import BadInput
from pliant.torch.group.choice import NCCL, TCP, choose

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def _one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU and PyTorch with NCCL, as far as the choice can see."""
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


def chosen(wanted: str | None, device: torch.device, *, local_rank: int = 0, may_share_gpu: bool = False) -> str:
    return choose(wanted, device, local_rank=local_rank, may_share_gpu=may_share_gpu)


def test_a_model_on_the_cpu_is_reduced_over_tcp() -> None:
    assert chosen(None, CPU) == TCP
    assert chosen("tcp", CPU) == TCP


def test_nccl_needs_a_gpu() -> None:
    with pytest.raises(BadInput, match=r'^collectives="nccl" needs a model on a GPU and PyTorch with NCCL; the model'):
        chosen("nccl", CPU)


def test_an_unknown_library_is_refused() -> None:
    with pytest.raises(BadInput, match=r'^collectives must be "nccl" or "tcp", got \'mpi\'\.$'):
        chosen("mpi", CPU)


@pytest.mark.usefixtures("_one_gpu")
def test_a_model_on_a_gpu_is_reduced_over_nccl_unless_the_script_wants_tcp() -> None:
    assert chosen(None, GPU) == NCCL
    assert chosen("nccl", GPU) == NCCL
    assert chosen("tcp", GPU, local_rank=3) == TCP


@pytest.mark.usefixtures("_one_gpu")
def test_two_workers_on_one_gpu_are_refused_unless_nccl_allows_it() -> None:
    with pytest.raises(BadInput, match=r"^Worker 1 of this machine shares a GPU with another one \(1 visible\), which"):
        chosen(None, GPU, local_rank=1)
    assert chosen(None, GPU, local_rank=1, may_share_gpu=True) == NCCL
