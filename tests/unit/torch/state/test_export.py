"""Checkpoints of real trainings, opened by what others have: the safetensors library and plain PyTorch."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from pliant.torch.state.tensors import as_leaf, from_leaf
from pliant.train.checkpoint import open_storage, read_checkpoint
from pliant.train.checkpoint.safetensors_header import safetensors_type
from pliant.train.state.flat import flatten, restore
from unit.cli.program import invoke
from unit.torch.saved import Net, publish, state_of, step, trained


def same(one: Any, other: Any) -> bool:
    """To the bit, and of the same type."""
    return bool(one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bits(one), _bits(other)))


def same_models(one: nn.Module, other: nn.Module) -> bool:
    theirs = other.state_dict()
    return all(same(tensor, theirs[name]) for name, tensor in one.state_dict().items())


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_safetensors_library_opens_every_piece(tmp_path: Path, count: int) -> None:
    model, optimizer, scheduler = trained()
    publish(tmp_path, state_of(model, optimizer, scheduler).capture(), count)
    tensors: dict[str, Tensor] = {}
    for path in sorted((tmp_path / "one").glob("*.safetensors")):
        loaded = load_file(path)
        with safe_open(path, "pt") as opened:  # and read lazily, one by one
            assert all(same(opened.get_tensor(name), loaded[name]) for name in opened.keys())  # noqa: SIM118
            assert opened.metadata()["checkpoint"] == "one"
        tensors |= loaded
    for name, value in model.state_dict().items():
        assert same(tensors[f"model.{name}"], value), name
    moments = optimizer.state_dict()["state"]
    assert same(tensors["optimizers.0.state.3.exp_avg"], moments[3]["exp_avg"])
    assert len(tensors) == len(model.state_dict()) + 3 * len(moments)


ODD = [
    torch.tensor(1.5, dtype=torch.float64),
    torch.empty(0, 3),
    torch.tensor([True, False, True]),
    torch.tensor([1, 2, 65535], dtype=torch.uint16),
    torch.arange(6).reshape(2, 3).t(),  # not contiguous
    torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64),
    torch.tensor(1 + 2j, dtype=torch.complex128),
    torch.arange(4.0).to(torch.float8_e4m3fn),
    torch.arange(4.0).to(torch.float8_e5m2),
    torch.arange(4.0).to(torch.float8_e4m3fnuz),
    torch.arange(4.0).to(torch.float16),
    torch.tensor([], dtype=torch.complex64),
]


@pytest.mark.parametrize("tensor", ODD, ids=lambda each: str(each.dtype))
def test_odd_tensors_come_back_to_the_bit_and_the_library_opens_them(tmp_path: Path, tensor: Tensor) -> None:
    state = flatten([torch.tensor([True]), tensor], as_leaf)  # the flag puts what follows at an odd place
    checkpoint = publish(tmp_path, state)
    received = read_checkpoint(open_storage(tmp_path), checkpoint)
    assert same(restore(received.tree, received.contents, from_leaf)[1], tensor)
    loaded = load_file(tmp_path / "one" / "0-of-1-m-0.safetensors")["1"]
    assert _bits(loaded).tolist() == _bits(tensor).tolist()
    known = not tensor.is_complex() and tensor.dtype is not torch.float8_e4m3fnuz
    assert (loaded.dtype, loaded.shape) == (tensor.dtype, tensor.shape) if known else loaded.dtype is torch.uint8


def test_every_type_of_torch_has_a_name_or_goes_as_bytes() -> None:
    from pliant.train.checkpoint.tree_json import TensorInfo as Described

    kinds = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    for kind in kinds:
        name = str(kind).removeprefix("torch.")
        nbytes = 6 * kind.itemsize
        assert safetensors_type(Described("x", name, (2, 3), nbytes)) in (
            ("U8", [2, 3, kind.itemsize]),
            (safetensors_type(Described("x", name, (2, 3), nbytes))[0], [2, 3]),
        )


def test_a_checkpoint_is_installed_into_a_training_that_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    model, optimizer, scheduler = trained(5)
    first = trained(3)
    checkpoint = publish(tmp_path, state_of(*first).capture(), 3)
    other = trained(1)
    state_of(*other).install(read_checkpoint(open_storage(tmp_path), checkpoint))
    for _ in range(2):
        step(other[0], other[1])
        other[2].step()
    assert same_models(model, other[0])
    assert optimizer.param_groups[0]["lr"] == other[1].param_groups[0]["lr"]
    assert scheduler.state_dict() == other[2].state_dict()


PLAIN = """
import sys, torch
sys.modules["pliant"] = None  # this script knows nothing of it
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3).to(torch.bfloat16)
    def forward(self, x):
        return self.last(self.norm(self.first(x)).to(torch.bfloat16)).float()

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
saved = torch.load(sys.argv[1], weights_only=True)
model.load_state_dict(saved["model"])
optimizer.load_state_dict(saved["optimizers"][0])
scheduler.load_state_dict(saved["others"]["scheduler"])
for _ in range(saved["step"], 5):
    optimizer.zero_grad()
    model(torch.arange(20.0).reshape(4, 5)).square().mean().backward()
    optimizer.step()
    scheduler.step()
torch.save(model.state_dict(), sys.argv[2])
"""


def test_a_plain_script_goes_on_from_what_is_exported_to_the_same_bits(tmp_path: Path) -> None:
    publish(tmp_path / "place", state_of(*trained(3)).capture(), 2)
    done = invoke("export", str(tmp_path / "place"), "--out", str(tmp_path / "out.pt"), "--json")
    assert done.json["step"] == 3
    (tmp_path / "plain.py").write_text(PLAIN)
    command = [sys.executable, "plain.py", "out.pt", "end.pt"]
    threads = str(torch.get_num_threads())  # other threads give other bits
    subprocess.run(command, cwd=tmp_path, check=True, env={"OMP_NUM_THREADS": threads}, timeout=100)
    end = torch.load(tmp_path / "end.pt", weights_only=True)
    expected = trained(5)[0].state_dict()
    assert end.keys() == expected.keys()
    assert all(same(end[name], expected[name]) for name in expected)


def test_the_exported_model_is_loaded_by_its_own_names(tmp_path: Path) -> None:
    model, optimizer, scheduler = trained()
    publish(tmp_path / "place", state_of(model, optimizer, scheduler).capture(), 2)
    assert invoke("export", str(tmp_path / "place"), "--out", str(tmp_path / "out")).code == 0
    other = Net()
    other.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    assert same_models(model, other)
    assert len(load_file(tmp_path / "out" / "rest.safetensors")) == 3 * len(optimizer.state_dict()["state"])


def test_whatever_a_state_may_hold_is_loaded_without_trust(tmp_path: Path) -> None:
    from collections import Counter, deque

    value: dict[str, Any] = {
        "model": {"w": torch.ones(2)},
        "others": {
            "plain": [None, True, 2**70, 1.5, "text", b"bytes", 1 + 2j, (1, (2,)), {1, 2}],
            "counter": Counter({"a": 2}),
            "deque": deque([1, torch.zeros(1)], maxlen=3),
            "keys": {1: "a", (1, "b"): {"c": torch.tensor(2)}},
        },
        "moving": None,
    }
    publish(tmp_path / "place", flatten(value, as_leaf))
    assert invoke("export", str(tmp_path / "place"), "--format", "torch", "--out", str(tmp_path)).code == 0
    loaded = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert loaded["others"]["plain"] == value["others"]["plain"]
    assert loaded["others"]["deque"] == [1, torch.zeros(1)]
    assert loaded["others"]["keys"] == value["others"]["keys"]
    assert (loaded["step"], loaded["job"], loaded["checkpoint"], loaded["cursor"]) == (3, "demo", "one", None)
    assert "moving" not in loaded
    again = invoke("export", str(tmp_path / "place"), "--format", "torch", "--out", str(tmp_path))
    assert "checkpoint.pt exists already" in again.err


def test_without_torch_the_extra_is_named(tmp_path: Path) -> None:
    publish(tmp_path / "place", flatten({"model": {"w": torch.ones(2)}}, as_leaf))
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None\n"
        "from pliant.cli.main import main; main(sys.argv[1:])\n"
    )

    def export(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, "export", str(tmp_path / "place"), *args]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)

    done = export("--out", str(tmp_path / "x.pt"))
    assert (done.returncode, "pip install 'pliant[torch]'" in done.stderr) == (2, True)
    assert export("--out", str(tmp_path / "x")).returncode == 0
    assert same(load_file(tmp_path / "x" / "model.safetensors")["w"], torch.ones(2))
