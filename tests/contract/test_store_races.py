"""Compare-and-swap between real processes. Stores of one process have no rival and are not in here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

RACER = Path(__file__).with_name("racer.py")
RACERS = ("w", "x", "y", "z")
JOBS = ("a", "b", "c")


def laps(where: str) -> int:
    return 100 if where.startswith("sqlite:") else 20  # a request to etcd takes several times as long


def start(where: str, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(RACER), where, name, str(laps(where))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(racer: subprocess.Popen[str]) -> list[tuple[int, str, int]]:
    """Send it off, if that was not done before, and return what it was answered."""
    output, _ = racer.communicate("go\n")
    assert racer.returncode == 0
    answers = [line.split() for line in output.splitlines() if line != "ready"]
    return [(int(lap), job, int(revision)) for lap, job, revision in answers]


def test_no_event_is_lost_or_doubled_when_processes_race(shared: Any) -> None:
    racers = {name: start(shared.where, name) for name in RACERS}
    for racer in racers.values():
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers.values():  # all are open by now, so they write at the same time
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    acknowledged = {name: finish(racer) for name, racer in racers.items()}
    for job in JOBS:
        entries = shared.store.events(job, 0, 10_000)
        assert [entry.revision for entry in entries] == list(range(1, len(RACERS) * laps(shared.where) + 1))
        wanted = [f"{name}:{lap}".encode() for name in RACERS for lap in range(laps(shared.where))]
        assert sorted(entry.data for entry in entries) == sorted(wanted)
        for name, answers in acknowledged.items():
            for lap, where, revision in answers:
                if where == job:  # the event of each process has the revision that was acknowledged
                    assert entries[revision - 1].data == f"{name}:{lap}".encode()
        stored = shared.store.read(job)
        assert stored is not None
        assert stored.tail == tuple(entry.data for entry in entries[stored.record_revision :])


def test_a_store_that_all_open_at_once_is_made_once(shared: Any) -> None:
    """The name is new: the first process creates the job, and all of them write to it."""
    where = f"{shared.where}-new"
    racers = [start(where, name) for name in RACERS]
    newest = max(revision for racer in racers for _, _, revision in finish(racer))
    assert newest == len(RACERS) * laps(where)
