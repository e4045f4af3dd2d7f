"""The campaign on a small scale, and whether its checks would notice anything."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chaos.servers.campaign import Fault, compare, plan
from chaos.servers.pushes import ACKNOWLEDGED, BEGUN, Pushes, PushLog

TESTS = Path(__file__).parents[2]


@pytest.fixture
def pushes(tmp_path: Path) -> Pushes:
    """Ten records, of which one worker pushed all, and another one the last five again without an answer."""
    first, second = PushLog(tmp_path, "w1"), PushLog(tmp_path, "w2")
    first.begun(range(10))
    first.answered(range(10), applied=True)
    second.begun(range(5, 10))
    return Pushes(tmp_path, 10)


def test_the_notes_of_all_workers_are_added_up(pushes: Pushes) -> None:
    assert (pushes.batches[BEGUN], pushes.batches[ACKNOWLEDGED]) == (2, 1)
    assert pushes.begun.tolist() == [1] * 5 + [2] * 5
    assert compare(pushes, np.asarray([1] * 7 + [2] * 3), 0) == []


@pytest.mark.parametrize(
    ("record", "count", "text"),
    [(3, 0, "acknowledged pushes of 1 records are lost"), (3, 2, "pushes of 1 records were applied more often")],
)
def test_a_lost_and_a_repeated_push_are_found(pushes: Pushes, record: int, count: int, text: str) -> None:
    saved = np.ones(10, np.int64)
    saved[record] = count
    (found,) = compare(pushes, saved, 0)
    assert text in found


def test_records_without_a_push_and_with_too_many_are_found(pushes: Pushes) -> None:
    pushes.acknowledged[2], pushes.acknowledged[9] = 0, 2
    found = compare(pushes, pushes.begun, 0)
    assert [each.split(" record")[0] for each in found] == ["1", "1"]


def test_servers_are_added_before_they_are_removed() -> None:
    for seed in range(20):
        changes = [each for each in plan(100, random.Random(seed)) if each in (Fault.ADD_SERVER, Fault.REMOVE_SERVER)]
        assert changes[::2] == [Fault.ADD_SERVER] * len(changes[::2])
        assert changes[1::2] == [Fault.REMOVE_SERVER] * len(changes[1::2])
        assert len(plan(7, random.Random(seed))) == 7


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_acknowledged_push_is_lost_through_some_faults() -> None:
    command = [sys.executable, "-m", "chaos.servers", "--faults", "6"]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ok"]
    assert found["faults"] == 6
