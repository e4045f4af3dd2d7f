"""Two schedules with real processes over the real service; `make schedules` runs fifty."""

import json
import subprocess
import sys

import pytest

from tidy.files import ROOT


@pytest.mark.long
def test_two_schedules_keep_every_promise_and_leave_nothing_behind() -> None:
    command = [sys.executable, "-m", "schedules", "--seeds", "2", "--parallel", "2"]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["ok"], summary["schedules"]) == (True, 2)
    assert sum(summary["faults"].values()) >= 4
    assert summary["generations"] >= 4
    assert summary["views"] > 0
    assert summary["acknowledged"] > 0
