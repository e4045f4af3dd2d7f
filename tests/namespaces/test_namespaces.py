"""Failures that `make namespaces` reports, and its reason where it cannot run."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import cast

from namespaces import __main__ as harness
from namespaces.cluster import Cluster
from namespaces.scenario import Scenario
from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.model.job import Member, Terms
from pliant.core.model.names import AgentId, MemberId
from tidy.files import ROOT


def scenario(*lost: str) -> Scenario:
    return Scenario(cast(Cluster, None), random.Random(0), lambda: 0, lost=set(lost))


def joined(name: str, pid: int) -> m.Event:
    return m.MemberJoined(0.0, Member(MemberId(name), 1, AgentId("agent-1"), pid=pid), Terms(Grid(8, 8, 1, 1), seed=0))


def gone(name: str, how: str) -> m.Event:
    return m.MemberGone(0.0, MemberId(name), how, "")


def test_who_stays_is_one_process_and_who_is_lost_was_cut_off() -> None:
    fine = [joined("a", 1), joined("b", 2), gone("a", "lost"), gone("b", "left")]
    assert harness._members(fine, scenario("a")) == []
    assert harness._members([*fine, joined("b", 3)], scenario("a")) == ["b was several processes: [2, 3]"]
    assert harness._members(fine, scenario("a", "b")) == ["['b'] were cut off, and the job did not notice"]
    (unexpected,) = harness._members(fine, scenario())
    assert unexpected.startswith("a is gone, and it was not cut off: lost")


def test_where_it_cannot_be_tried_it_says_why(tmp_path: Path) -> None:
    """Without `ip`; as any member but root the reason is another one."""
    env = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "namespaces"]
    done = subprocess.run(command, cwd=ROOT / "tests", env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["ok"]
    assert said["skipped"] in done.stdout.splitlines()[0]
    assert "iproute2" in said["skipped"] or "root" in said["skipped"]
