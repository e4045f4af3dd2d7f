"""Every argument of `job.train` is checked before anything starts, with a message that says what to pass."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pliant.torch as pliant
from pliant.errors import BadInput


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def points(samples: int) -> TensorDataset:
    return TensorDataset(torch.zeros(samples, 4))


def train(**changed: Any) -> pliant.Run:
    model = nn.Linear(4, 2)
    given: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": points(20),
        "batch_size": 4,
    }
    with pliant.join() as job:
        return job.train(**{**given, **changed})


CASES = [
    ({"model": "net"}, "model must be a torch.nn.Module, got a str."),
    ({"optimizer": []}, "optimizer is empty. Pass the optimizers that train the model."),
    ({"dataset": points(0)}, "dataset has no samples (a TensorDataset of length 0). Pass one with samples."),
    ({"dataset": []}, "dataset has no samples (a list of length 0). Pass one with samples."),
    ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0."),
    ({"batch_size": 3.5}, "batch_size must be a whole number of at least 1, got 3.5."),
    ({"batch_size": "16"}, "batch_size must be a whole number of at least 1, got '16'."),
    ({"batch_size": True}, "batch_size must be a whole number of at least 1, got True."),
    ({"epochs": 1.5}, "epochs must be a whole number of at least 1, got 1.5."),
    ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0."),
    ({"seed": "x"}, "seed must be a whole number, got 'x'."),
    ({"seed": 1 << 63}, "seed must be below 2**63, got 9223372036854775808."),
    ({"slots": 0}, "slots must be a whole number of at least 1, got 0."),
    ({"slots": 64}, "slots=64 is more than batch_size=4. A slot holds at least one sample: lower slots."),
    ({"samples_per_epoch": 0}, "samples_per_epoch must be a whole number of at least 1, got 0."),
    ({"micro_batch": 0}, "micro_batch must be a whole number of at least 1, got 0."),
    ({"micro_batch": 2.0}, "micro_batch must be a whole number of at least 1, got 2.0."),
    (
        {"order": 5},
        'order must be "shuffled", "sequential" or a function that returns the indices of an epoch, not 5',
    ),
    (
        {"state": [1]},
        'state must be a dictionary of objects by name, such as {"scheduler": scheduler}, got a list.',
    ),
    (
        {"state": {"lr": 1}},
        'state["lr"] is an int; wrap it in an object with state_dict and load_state_dict.',
    ),
    ({"state": {3: nn.Linear(1, 1)}}, "The names in state= must be strings, got 3."),
    ({"scaler": 1024.0}, "scaler must be a torch.amp.GradScaler, got a float."),
    ({"clip_norm": -1}, "clip_norm must be a number above 0, or None for no clipping, got -1."),
    ({"clip_norm": float("nan")}, "clip_norm must be a number above 0, or None for no clipping, got nan."),
    ({"clip_norm": "1"}, "clip_norm must be a number above 0, or None for no clipping, got '1'."),
    ({"nonfinite": "stop"}, 'nonfinite must be "raise", "skip" or "ignore", got \'stop\'.'),
    ({"num_workers": -1}, "num_workers must be a whole number of at least 0, got -1."),
    ({"collate_fn": "pad"}, "collate_fn must be a function that takes a list of samples, got 'pad'."),
    ({"pin_memory": 1}, "pin_memory must be True or False, got 1."),
    ({"stall_s": "5m"}, "stall_s must be a number of seconds, or 0 for no limit, got '5m'."),
    ({"deterministic": "yes"}, "deterministic must be True or False, got 'yes'."),
    ({"other_bits": None}, "other_bits must be True or False, got None."),
    ({"verify": 2.5}, "verify must be a whole number, got 2.5."),
    (
        {"verify": -1},
        "verify must be 0 (never) or the number of steps between two comparisons of the members' states, got -1.",
    ),
    ({"verify_slots": "all"}, "verify_slots must be a number, got 'all'."),
    ({"verify_slots": 2}, "verify_slots must be the fraction of slots to compute twice, from 0 to 1, got 2."),
]


@pytest.mark.parametrize(("changed", "message"), CASES, ids=lambda case: next(iter(case)) if type(case) is dict else "")
def test_a_wrong_argument_is_named_with_its_value_and_what_to_pass(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as raised:
        train(**changed)
    assert raised.value.why == message


def test_numbers_of_numpy_are_numbers() -> None:
    assert train(batch_size=np.int64(5), epochs=np.int32(3), seed=np.uint8(7)).total_steps == 12


SCRIPT = """
import torch
import pliant.torch as pliant

model = torch.nn.Linear(4, 2)
with pliant.join() as job:
    run = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.zeros(8, 4), batch_size=0)
"""


def test_the_traceback_of_a_wrong_argument_ends_at_the_line_of_the_script() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    shown = done.stderr[done.stderr.index("Traceback") :].splitlines()
    assert shown[0] == "Traceback (most recent call last):"
    assert [line.strip() for line in shown if line.startswith("  File")] == ['File "<string>", line 7, in <module>']
    assert shown[-1] == "pliant.errors.BadInput: batch_size must be a whole number of at least 1, got 0."
