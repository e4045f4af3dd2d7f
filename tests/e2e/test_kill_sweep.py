"""A coordinator killed at every write of a scripted run, and started again: its history is that of a run undisturbed.

Nothing that was acknowledged is missing and nothing happened twice, or the two histories would differ.
"""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.running import Running, start
from pliant.client import Client
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.messages import Command
from pliant.core.model.job import JobSpec, JobState, Target
from pliant.core.model.names import AgentId, MemberId
from unit.core.build import TERMS, checkpoint, lines

A, B, C, X = MemberId("a"), MemberId("b"), MemberId("c"), AgentId("x")
DYING = Path(__file__).with_name("dying.py")
AT_THE_START = 2  # the coordinator's own token, and the secret that members' keys are made of
WRITES = AT_THE_START + 21  # with those of the script; a test below counts them
WHEN = ("before", "during", "after")

FIRST = lines(GENESIS, 1, 3)
SECOND = lines(FIRST[-1].lineage, 2, 2)
SCRIPT: tuple[Command, ...] = (
    m.Create("demo", JobSpec(1, 4, Target(2))),
    m.AgentJoin(X, 4),
    m.Join(A, X, TERMS),
    m.Report(A, 0, 1, (), frozenset({A})),
    m.Report(A, 0, 1, FIRST[:1]),
    m.Join(B, X, TERMS),
    m.Report(A, 0, 1, FIRST[1:]),
    m.Report(A, 0, 2, SECOND, frozenset({A, B})),
    m.Publish(A, 2, checkpoint(SECOND[0].lineage, "two")),
    m.Resize(Target(3)),
    m.Join(C, X, TERMS),
    m.Drain(C, 30.0, "a spot notice"),
    m.Leave(C, 0, "drained"),
    m.Stopped(B, 2, SECOND[-1].lineage, frozenset(), "a peer did not answer"),
    m.Exited(B, -9),
    m.Resize(Target(2)),
    m.AgentJoin(X, 2),
    m.DrainAgent(X, 5.0, "maintenance"),
    m.AgentLeave(X),
    m.Cancel("enough"),
    m.Leave(A, 0, "saved"),
)


def run_script(client: Client) -> list[int]:
    """Everything, one after the other; each is asked again until it is answered."""
    return [client.send("demo", command).revision for command in SCRIPT]


def history(client: Client) -> list[str]:
    """Return what happened, without when."""
    return [f"{revision}: {_timeless(event)!r}" for revision, event in client.events("demo", 0, 1000)]


def _timeless(event: m.Event) -> tuple[object, ...]:
    return (type(event).__name__, *(getattr(event, name) for name in event.__slots__ if name != "at"))


def coordinator(home: Path, number: int = 0, when: str = "", port: int = 0) -> Running:
    environment = {**os.environ, "PYTHONPATH": str(DYING.parents[1])}
    program = ("env", f"PYTHONPATH={environment['PYTHONPATH']}", sys.executable, str(DYING), str(number), when)
    # The script sends no renewals: no lease may run out while a coordinator is being started.
    return start(f"sqlite:{home / 'store.db'}", home=home, port=port, lease_ttl_s=3600.0, program=program)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    home = tmp_path_factory.mktemp("undisturbed")
    with coordinator(home) as running:
        run_script(running.client())
        told = history(running.client())
        assert running.client().job("demo").job.state is JobState.CANCELLED
    assert int((home / "writes").read_text()) == WRITES, "the script has another number of writes now"
    return told


def survive(home: Path, number: int, when: str) -> tuple[list[int], list[str]]:
    """The script with a coordinator that dies once, and another one that takes its place."""
    first = coordinator(home, number, when)
    client = Client([first.url], first.token, patience_s=60.0)
    revisions: list[int] = []
    asking = threading.Thread(target=_into(revisions, lambda: run_script(client)))
    asking.start()
    assert first.process.wait(60) == -9
    first.kill()
    with coordinator(home, port=first.port):
        asking.join(60)
        assert not asking.is_alive(), "the script did not come to its end"
        told = history(client)
    client.close()
    return revisions, told


def _into(results: list[int], work: Callable[[], list[int]]) -> Callable[[], None]:
    return lambda: results.extend(work())


def _often(number: int) -> Any:
    """Every fourth write in every run of the tests; `make long` sweeps over the others."""
    return number if number % 4 == 0 else pytest.param(number, marks=pytest.mark.long)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("number", [_often(number) for number in range(1 + AT_THE_START, WRITES + 1)])
def test_a_coordinator_killed_at_a_write_loses_nothing_and_does_nothing_twice(
    number: int, when: str, tmp_path: Path, undisturbed: list[str]
) -> None:
    revisions, told = survive(tmp_path, number, when)
    assert told == undisturbed
    assert len(revisions) == len(SCRIPT)
    assert revisions == sorted(revisions)
    assert revisions[-1] == len(told)


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("number", range(1, 1 + AT_THE_START))
def test_a_coordinator_killed_while_it_writes_its_own_secrets_starts_again(
    number: int, when: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match="did not start"):
        coordinator(tmp_path, number, when)
    with coordinator(tmp_path) as running:
        assert running.client().jobs() == ()
        assert len(running.client().tokens()) == 1
