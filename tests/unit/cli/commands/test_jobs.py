import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pliant.client import Client
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.model.job import JobSpec, Target
from pliant.core.model.names import AgentId, MemberId
from unit.cli.program import Done, Running, coordinator, invoke, real
from unit.core.build import TERMS, lines

Pliant = Callable[..., Done]


def peopled(running: Running, job: str, spares: int = 0) -> None:
    """Create a job of two members on one agent that has done two steps."""
    with running.client() as client:
        client.send(job, m.Create(job, JobSpec(2, 4, Target(2), spares=spares)))
        client.send(job, m.AgentJoin(AgentId("gpu-1"), 4))
        for name, pid in (("gpu-1.1", 4242), ("gpu-1.2", 0)):
            client.send(job, m.Join(MemberId(name), AgentId("gpu-1"), TERMS, pid=pid))
        both = frozenset({MemberId("gpu-1.1"), MemberId("gpu-1.2")})
        client.send(job, m.Report(MemberId("gpu-1.1"), 0, 1, lines(GENESIS, 1, 2), both))


def test_without_jobs_the_list_says_how_to_make_one(pliant: Pliant) -> None:
    done = pliant("jobs")
    assert (done.code, done.out) == (0, "")
    assert "`pliant jobs create NAME --workers MIN:MAX`" in done.err
    assert pliant("jobs", "--json").json == {"jobs": []}


def test_a_job_is_created_and_listed(pliant: Pliant) -> None:
    done = pliant("jobs", "create", "list-1", "--workers", "2:8", "--target", "4")
    assert (done.code, done.out) == (0, "list-1 is waiting: 0 of the 2 workers needed\n")
    heads, row = (line for line in pliant("jobs").out.splitlines() if line.startswith(("NAME", "list-1 ")))
    assert heads.split() == ["NAME", "STATE", "FOR", "WORKERS", "STEP", "REASON"]
    assert row.split(maxsplit=7)[4:] == ["0/4", "(2:8)", "0", "0 of the 2 workers needed"]
    assert row.split()[:2] == ["list-1", "waiting"]
    (line,) = (line for line in pliant("jobs", "--json").json["jobs"] if line["name"] == "list-1")
    assert (line["size_min"], line["size_max"], line["target"], line["step"], line["total_steps"]) == (2, 8, 4, 0, None)


def test_a_job_is_created_in_a_queue_and_waits_there(pliant: Pliant) -> None:
    made = pliant("jobs", "create", "queued", "--workers", "2:4", "--queue", "batch", "--priority", "3")
    assert (made.code, made.err) == (0, "")
    spec = pliant("status", "queued", "--json").json["spec"]
    assert (spec["queue"], spec["priority"]) == ("batch", 3)
    refused = pliant("jobs", "create", "queued", "--workers", "2:4")
    assert refused.code != 0
    assert "job queued is in queue batch: pass --queue batch" in refused.err


def test_one_number_of_workers_means_exactly_that_many(pliant: Pliant) -> None:
    made = pliant(
        "jobs", "create", "exact", "--workers", "8", "--wait-limit-s", "60", "--max-restarts", "1", "--json"
    ).json
    assert (made["job"]["size_min"], made["job"]["size_max"], made["job"]["target"]) == (8, 8, 8)
    assert made["revision"] == made["job"]["revision"] == 2
    found = pliant("status", "exact", "--json").json
    assert (found["spec"]["wait_limit_s"], found["spec"]["max_restarts"]) == (60.0, 1)
    assert "fails after waiting 60 s for workers" in pliant("status", "exact").out


def test_a_job_that_is_asked_for_twice_is_there_once_and_takes_other_settings(pliant: Pliant) -> None:
    first = pliant("jobs", "create", "twice", "--workers", "2:4", "--json").json
    assert pliant("jobs", "create", "twice", "--workers", "2:4", "--json").json == first
    other = pliant("jobs", "create", "twice", "--workers", "2:5", "--json").json
    assert (other["job"]["size_max"], other["job"]["target"]) == (5, 5)


def test_settings_that_are_named_change_and_the_others_stay(pliant: Pliant) -> None:
    pliant("jobs", "create", "tuned", "--workers", "2:4", "--max-restarts", "7", "--json")
    done = pliant("jobs", "set", "tuned", "--workers", "1:6", "--checkpoint-every", "500")
    assert (done.code, done.out) == (0, "tuned: --workers 2:4 -> 1:6, --checkpoint-every 600 s -> 500 steps\n")
    spec = pliant("status", "tuned", "--json").json["spec"]
    assert (spec["size_min"], spec["size_max"], spec["max_restarts"]) == (1, 6, 7)
    others = ("--spares", "2", "--wait-limit-s", "60", "--max-restarts", "1", "--checkpoint-keep", "5")
    spec = pliant("jobs", "set", "tuned", *others, "--json").json["spec"]
    assert (spec["spares"], spec["wait_limit_s"], spec["max_restarts"], spec["checkpoints"]["keep"]) == (2, 60.0, 1, 5)
    assert (spec["size_max"], spec["checkpoints"]["steps"]) == (6, 500)
    assert "tuned has these settings already." in pliant("jobs", "set", "tuned", "--spares", "2").out


def test_a_schedule_is_set_shown_and_removed(running: Running, pliant: Pliant) -> None:
    peopled(running, "planned")
    done = pliant("jobs", "set", "planned", "--schedule", "1:3,50:4")
    assert (done.code, done.out) == (0, "planned: --schedule none -> 1:3,50:4\n")
    assert "schedule    1:3,50:4; next: 4 workers from step 50" in pliant("status", "planned").out
    assert "from step 1 on, outside 2 to 4" in pliant("jobs", "set", "planned", "--schedule", "1:9").err
    assert pliant("resize", "planned", "2").out == "planned: target set to 2 workers, until step 50 of its schedule.\n"
    pliant("jobs", "set", "planned", "--schedule", "1:3")
    assert "schedule    1:3; next: no entry is left" in pliant("status", "planned").out
    assert pliant("jobs", "set", "planned", "--schedule", "none").code == 0
    assert "schedule" not in pliant("status", "planned").out


def test_a_change_of_nothing_or_of_a_job_that_has_ended_is_refused(pliant: Pliant) -> None:
    pliant("jobs", "create", "over", "--workers", "2", "--json")
    assert "Name at least one setting to change" in pliant("jobs", "set", "over").err
    assert pliant("cancel", "over").code == 0
    done = pliant("jobs", "set", "over", "--spares", "2")
    assert (done.code, "over is cancelled. Pass the new settings when you start it again." in done.err) == (3, True)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("a b", "--workers", "2"), "a name has letters, digits"),
        (("bad", "--workers", "8:2"), "sizes must satisfy"),
        (("bad", "--workers", "two"), "'two' is neither MIN:MAX"),
        (("bad", "--workers", "2:"), "'2:' is neither MIN:MAX"),
        (("bad", "--workers", "2:4", "--target", "9"), "the target must lie between min 2 and max 4"),
        (("bad",), "Missing option '--workers'"),
    ],
)
def test_a_job_that_cannot_be_is_bad_input(pliant: Pliant, args: tuple[str, ...], why: str) -> None:
    done = pliant("jobs", "create", *args)
    assert (done.code, done.out) == (2, "")
    assert why in done.err


def test_options_before_the_command_are_not_silently_forgotten(pliant: Pliant) -> None:
    done = pliant("jobs", "--json", "create", "x", "--workers", "2")
    assert done.code == 2
    assert "pliant jobs create ... [OPTIONS]" in done.err


def test_status_shows_members_agents_and_progress(running: Running, pliant: Pliant) -> None:
    peopled(running, "busy")
    done = pliant("status", "busy")
    assert done.code == 0
    assert re.fullmatch(r"busy +running since \d\d:\d\d, 2 workers", done.out.splitlines()[0])
    facts = dict(line.split(maxsplit=1) for line in done.out.split("\n\n")[0].splitlines())
    assert facts["workers"] == "2 in the world, 2 wanted, 2 to 4 allowed"
    assert facts["world"] == "generation 1"
    assert facts["step"] == "2 of 12, epoch 0"
    assert facts["checkpoint"] == "none"
    assert "gpu-1.1  active  0     gpu-1  4242" in done.out
    assert "gpu-1.2  active  1     gpu-1  -" in done.out
    assert "gpu-1  4         2       2" in done.out


def test_status_for_programs_is_one_flat_object(running: Running, pliant: Pliant) -> None:
    peopled(running, "flat", spares=1)  # without a spare, the third member would be drained
    with running.client() as client:
        client.send("flat", m.Join(MemberId("gpu-1.3"), AgentId("gpu-1"), TERMS))
    found = pliant("status", "flat", "--json").json
    told = {name: found[name] for name in ("state", "generation", "size", "target", "step", "epoch", "total_steps")}
    assert told == {
        "state": "running",
        "generation": 1,
        "size": 2,
        "target": 2,
        "step": 2,
        "epoch": 0,
        "total_steps": 12,
    }
    assert found["why"]
    assert [(line["id"], line["rank"], line["pid"], line["agent"], line["state"]) for line in found["members"]] == [
        ("gpu-1.1", 0, 4242, "gpu-1", "active"),
        ("gpu-1.2", 1, None, "gpu-1", "active"),
        ("gpu-1.3", None, None, "gpu-1", "spare"),
    ]
    assert (found["size_min"], found["size_max"], found["placement"], found["durable"]["step"]) == (2, 4, [], 2)
    assert found["durable"]["digest"] == str(lines(GENESIS, 1, 2)[-1].lineage.digest)  # exact for programs with doubles


def test_the_job_may_come_from_the_environment(pliant: Pliant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No job given. Pass JOB or set PLIANT_JOB." in pliant("status").err
    pliant("jobs", "create", "mine", "--workers", "2:4")
    monkeypatch.setenv("PLIANT_JOB", "mine")
    assert pliant("status").out.startswith("mine")
    assert pliant("resize", "3").out == "mine: target set to 3 workers.\n"
    assert "Job mine has no agent a. See `pliant status mine`." in pliant("resize", "--place", "a=2").err
    assert "m1 is not a member of mine" in pliant("drain", "m1").err
    assert pliant("cancel", "--json").json["job"] == "mine"


def test_a_job_that_is_not_there_is_refused_and_a_name_that_cannot_be_is_bad_input(pliant: Pliant) -> None:
    for args in (("status",), ("events",), ("cancel",)):
        done = pliant(*args, "nothing")
        assert (done.code, done.out) == (3, ""), args
        assert "no" in done.err
        done = pliant(*args, "../jobs")
        assert done.code == 2
        assert "Invalid job name" in done.err


def test_a_resize_changes_the_target(pliant: Pliant, running: Running) -> None:
    pliant("jobs", "create", "sized", "--workers", "2:8")
    with running.client() as client:
        client.send("sized", m.AgentJoin(AgentId("a"), 2))
        client.send("sized", m.AgentJoin(AgentId("b"), 2))
    assert pliant("resize", "sized", "4").out == "sized: target set to 4 workers.\n"
    done = pliant("resize", "sized", "--place", "a=2", "--place", "b=1", "--json").json
    assert done["target"] == {"size": 3, "placement": [["a", 2], ["b", 1]]}
    assert "placement   2 on a, 1 on b\n" in pliant("status", "sized").out
    assert pliant("resize", "sized", "9").code == 2
    full = pliant("resize", "sized", "--place", "a=3")
    assert (full.code, full.err) == (2, "pliant: Agent a can run 2 workers, not 3.\n")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("resize", "j"), "Pass either a number of workers or --place"),
        (("resize", "j", "2", "--place", "a=2"), "Pass either a number of workers"),
        (("resize", "j", "two"), "must be a number, not 'two'"),
        (("resize", "j", "--place", "a"), "'a' is not AGENT=N"),
        (("drain", "j"), "Pass either MEMBER or --agent"),
        (("drain", "j", "m", "--agent", "a"), "Pass either MEMBER"),
        (("drain", "j", "m", "--grace-s", "-1"), "not in the range"),
        (("drain", "j", "m", "--leave"), "--leave needs --agent"),
    ],
)
def test_a_wish_that_makes_no_sense_is_bad_input(pliant: Pliant, args: tuple[str, ...], why: str) -> None:
    done = pliant(*args)
    assert (done.code, done.out) == (2, "")
    assert why in done.err


def test_a_drain_reaches_a_member_or_everybody_on_an_agent(running: Running, pliant: Pliant) -> None:
    peopled(running, "drained")
    done = pliant("drain", "drained", "gpu-1.2", "--grace-s", "5", "--why", "spot notice")
    assert (done.code, done.out) == (0, "gpu-1.2 will leave drained at the next boundary, within 5 s.\n")
    assert "gpu-1.2 drains within 5 s: spot notice" in pliant("events", "drained").out
    done = pliant("drain", "drained", "--agent", "gpu-1", "--json")
    assert (done.json["agent"], done.json["grace_s"]) == ("gpu-1", 30.0)
    assert {line["state"] for line in pliant("status", "drained", "--json").json["members"]} == {"draining"}
    done = pliant("drain", "drained", "--agent", "gpu-1", "--leave", "--grace-s", "4")
    assert done.out.endswith("gpu-1 then exits. Its workers are replaced on other agents that have room.\n")
    assert pliant("drain", "drained", "stranger").code == 3


def test_a_cancel_says_how_the_job_ended_also_if_it_had_ended_before(pliant: Pliant) -> None:
    pliant("jobs", "create", "ended", "--workers", "2")
    assert pliant("cancel", "ended", "--why", "a typo").out == "ended is cancelled: a typo\n"
    assert pliant("cancel", "ended", "--json").json == {
        "job": "ended",
        "state": "cancelled",
        "why": "a typo",
        "revision": 3,
    }
    assert pliant("resize", "ended", "2").code == 3


def test_others_words_cannot_steer_the_terminal(pliant: Pliant) -> None:
    pliant("jobs", "create", "rude", "--workers", "2")
    pliant("cancel", "rude", "--why", "\x1b[2Jred\nalert [bold]")
    for args in (("jobs",), ("status", "rude"), ("events", "rude")):
        shown = pliant(*args).out
        assert "\x1b" not in shown
        assert "\\x1b[2Jred\\nalert [bold]" in shown


def test_the_program_says_the_same_as_its_functions(running: Running, pliant: Pliant) -> None:
    pliant("jobs", "create", "real", "--workers", "2:4")
    done = real(running.env(), "status", "real", "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == pliant("status", "real", "--json").json


def test_an_ended_job_of_a_coordinator_is_deleted_and_its_name_is_free(running: Running, pliant: Pliant) -> None:
    made = pliant("jobs", "create", "short", "--workers", "2", "--json").json
    refused = pliant("jobs", "delete", "short")
    assert refused.code == 3
    assert "job short is waiting, and only ended jobs can be deleted" in refused.err
    assert "`pliant cancel short`" in refused.err
    pliant("cancel", "short")
    assert pliant("jobs", "delete", "short").out == "Deleted short.\n"
    assert "no job 'short'" in pliant("status", "short").err
    assert "no job 'short'" in pliant("jobs", "delete", "short").err
    again = pliant("jobs", "create", "short", "--workers", "2", "--json").json
    assert again["revision"] > made["revision"]
    first = pliant("events", "short", "--json").out.splitlines()[0]
    assert json.loads(first)["revision"] > made["revision"]  # no revision is used again
    with running.client() as client:
        assert next(client.follow("short", 0))[0] == json.loads(first)["revision"]


def test_pruning_deletes_old_jobs_of_a_coordinator_and_no_others(pliant: Pliant) -> None:
    for name in ("prune-1", "prune-2", "prune-live"):
        pliant("jobs", "create", name, "--workers", "2")
    pliant("cancel", "prune-1")
    pliant("cancel", "prune-2")
    assert pliant("jobs", "prune", "--older-than", "1d").err == "No job is that old; nothing was deleted.\n"
    gone = {
        each["job"]: each["nbytes"] for each in pliant("jobs", "prune", "--older-than", "0s", "--json").json["deleted"]
    }
    assert gone["prune-1"] is gone["prune-2"] is None
    assert "prune-live" not in gone
    names = [job["name"] for job in pliant("jobs", "--json").json["jobs"]]
    assert "prune-live" in names
    assert "prune-1" not in names


def test_a_cancelled_job_is_reported_although_its_coordinator_ended_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with coordinator(tmp_path / "home") as alone:
        monkeypatch.setenv("PLIANT_HOME", str(alone.home))
        monkeypatch.setenv("PLIANT_COORDINATOR", alone.url)
        peopled(alone, "brief")
        send = Client.send

        def send_and_end(client: Client, job: str, command: m.Command) -> Any:
            done = send(client, job, command)
            alone.process.kill()  # as the coordinator of `pliant run` ends with its job
            alone.process.wait()
            return done

        monkeypatch.setattr(Client, "send", send_and_end)
        done = invoke("cancel", "brief", "--why", "enough")
    assert (done.code, done.out, done.err) == (0, "brief is cancelled: enough\n", "")
