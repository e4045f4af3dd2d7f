from collections.abc import Callable, Iterable

import httpx2
import pytest

from pliant.cli.commands import report as module
from pliant.core import messages as m
from pliant.core.accounting.goodput import Goodput, MembershipChange
from pliant.core.accounting.pauses import Pause
from pliant.core.data.ledger import GENESIS
from pliant.core.model.job import JobSpec, Target
from pliant.core.model.names import AgentId, MemberId
from pliant.credentials import read_token
from unit.cli.program import Done, Running
from unit.core.build import TERMS, lines

Pliant = Callable[..., Done]
ONE = MemberId("a.1")
WORDS = ["training", "recomputing", "checkpointing", "switching", "transfer", "waiting", "starting", "spare"]


def trained(running: Running, job: str, steps: int, spent: Iterable[Pause] = ()) -> None:
    """A job of one member, a second old when it joins, that reported so many steps."""
    with running.client() as client:
        client.send(job, m.Create(job, JobSpec(1, 2, Target(1))))
        client.send(job, m.Join(ONE, AgentId("a"), TERMS, age_s=1.0))
        client.send(job, m.Report(ONE, 0, 1, lines(GENESIS, 1, steps), frozenset({ONE}), tuple(spent)))


def test_every_second_of_a_job_that_is_over_has_its_word(running: Running, pliant: Pliant) -> None:
    trained(running, "whole", 12)
    found = pliant("report", "whole", "--json").json
    assert list(found["seconds"]) == WORDS
    assert sum(found["seconds"].values()) == pytest.approx(found["worker_seconds"])
    (worker,) = found["workers"]
    assert (worker["worker"], worker["agent"]) == (ONE, "a")
    assert worker["ended"] - worker["began"] == pytest.approx(found["worker_seconds"], abs=1e-6)
    assert (found["steps"], found["samples"], found["recomputed_samples"], found["attempts"]) == (12, 120, 0, 1)
    assert found["until"] >= worker["ended"]
    again = pliant("report", "whole", "--json").json
    assert again == found  # it is over: nothing is added


def test_a_job_that_runs_is_reported_as_far_as_it_has_come(running: Running, pliant: Pliant) -> None:
    trained(running, "half", 7)
    first = pliant("report", "half", "--json").json
    second = pliant("report", "half", "--json").json
    assert first["steps"] == 7
    assert second["seconds"]["training"] > first["seconds"]["training"]


def test_people_get_a_calm_table(running: Running, pliant: Pliant) -> None:
    trained(running, "calm", 12)
    done = pliant("report", "calm")
    assert (done.code, done.err) == (0, "")
    told = done.out.splitlines()
    assert told[0].startswith("calm: finished; ")
    assert told[0].endswith(", 1 worker")
    assert [line.split()[0] for line in told[3:11]] == WORDS
    assert told[11].split()[0] == "total"
    assert "samples       120 in 12 committed steps" in done.out
    assert "recomputed    0 samples in 0 steps" in done.out
    assert "planned       0 changes" in done.out
    assert max(map(len, told)) <= 80


def test_a_job_without_workers_has_nothing_to_share_out(running: Running, pliant: Pliant) -> None:
    with running.client() as client:
        client.send("empty", m.Create("empty", JobSpec(1, 2, Target(1))))
    assert pliant("report", "empty", "--json").json["goodput"] is None
    done = pliant("report", "empty")
    assert "empty: waiting; " in done.out
    assert "so far, 0 workers" in done.out
    assert "goodput       - of all worker-seconds were training" in done.out


def test_what_workers_do_now_is_among_the_metrics(running: Running) -> None:
    with running.client() as client:
        client.send("seen", m.Create("seen", JobSpec(1, 2, Target(1))))
        client.send("seen", m.Join(MemberId("b.1"), AgentId("a"), TERMS))
        client.send("seen", m.Report(MemberId("b.1"), 0, 1, lines(GENESIS, 1, 1), frozenset({MemberId("b.1")})))
    token = read_token(running.home / "token")
    answer = httpx2.get(f"{running.url}/metrics", headers={"authorization": f"Bearer {token.text}"}, trust_env=False)
    found = {line.split()[0]: float(line.split()[1]) for line in answer.text.splitlines() if line.startswith("pliant")}
    assert found['pliant_workers{doing="training"}'] >= 1.0
    assert found['pliant_workers{doing="recomputing"}'] == 0.0


def test_a_job_that_nobody_knows_is_refused(pliant: Pliant) -> None:
    assert pliant("report", "nowhere").code != 0


def test_changes_are_told_with_their_pauses(capsys: pytest.CaptureFixture[str]) -> None:
    found = Goodput()
    found.add(m.JobCreated(0.0, "demo", JobSpec(1, 2, Target(1))))
    found.add(m.JobCreated(1.0, "demo", JobSpec(1, 2, Target(1)), attempt=2))
    done = found.progress
    done.changes += [
        MembershipChange(1.0, True, 0.5),
        MembershipChange(2.0, True, 1.5),
        MembershipChange(2.5, True),
        MembershipChange(3.0, False, 4.0),
    ]
    done.highest_step, done.samples_ever = 3, 30
    module._print_report("demo", found, 5.0, runs=True)
    told = capsys.readouterr().out
    assert "demo: starting, attempt 2; " in told
    assert "planned       3 changes; pause 1.00 s median, 1.50 s at most" in told
    assert "unplanned     1 change; pause 4.00 s median, 4.00 s at most" in told
    assert "3 steps rolled back and not recomputed yet" in told
    facts = module.report_json(found, 5.0)
    assert facts["changes"] == {
        "planned": {"count": 3, "median_pause_s": 1.0, "longest_pause_s": 1.5},
        "unplanned": {"count": 1, "median_pause_s": 4.0, "longest_pause_s": 4.0},
    }
    assert facts["rolled_back_steps"] == 3
