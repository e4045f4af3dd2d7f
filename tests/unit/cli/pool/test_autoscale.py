"""`pliant autoscale --replay`, over the history of a job that reported a few steps."""

from __future__ import annotations

from collections.abc import Callable

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.model.job import Autoscale, JobSpec, Mode
from unit.cli.program import Done, Running
from unit.core.build import TERMS, A, X, lines


def test_a_replay_shows_speeds_and_advice(pliant: Callable[..., Done], running: Running) -> None:
    with running.client() as client:
        client.send("job", m.Create("job", JobSpec(1, 2, mode=Mode.LIVE, autoscale=Autoscale.ADVISE)))
        nothing = pliant("autoscale", "--replay", "job")
        assert nothing.out.startswith("Nothing of job was measured")
        client.send("job", m.AgentJoin(X, 2))
        client.send("job", m.Join(A, X, TERMS))
        head = GENESIS
        for _ in range(4):
            (line,) = lines(head, 1, 1)
            client.send("job", m.Report(A, 0, 1, (line,), frozenset({A})))
            head = line.lineage
    found = pliant("autoscale", "--replay", "job", "--json").json
    assert [each["size"] for each in found["speeds"]] == [1]
    assert (found["job"], found["pause_s"], found["advice"]) == ("job", 5.0, [])
    assert found["now"]["why"].startswith("1 of 2 workers train")
    shown = pliant("autoscale", "--replay", "job").out
    assert "a change takes 5.00 s" in shown
    assert "at the end  2: 1 of 2 workers train: waiting until all do" in shown
    assert "autoscale   advise" in pliant("status", "job").out


def test_without_replay_the_command_says_what_to_pass(pliant: Callable[..., Done]) -> None:
    done = pliant("autoscale", "job")
    assert done.code == 2
    assert "Pass --replay" in done.err


def test_autoscaling_can_be_changed_while_a_job_runs(pliant: Callable[..., Done]) -> None:
    assert pliant("jobs", "create", "other", "--workers", "1:2", "--autoscale", "advise").code == 0
    assert pliant("jobs", "set", "other", "--autoscale", "on").out == "other: --autoscale advise -> on\n"
