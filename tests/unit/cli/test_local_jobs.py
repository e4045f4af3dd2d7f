import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pliant.agent.coordinator.child import temporary_coordinator
from pliant.agent.job_dir import RUNNER, JobDir
from pliant.cli.connect import PROGRAM
from pliant.client import Client
from pliant.core.messages import Cancel, Create
from pliant.core.model.job import JobSpec, Target
from pliant.credentials import read_token
from unit.cli.commands.test_completion import completed
from unit.cli.program import coordinator, environment, invoke


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PLIANT_COORDINATOR", "PLIANT_TOKEN_FILE", "PLIANT_JOB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path))
    return tmp_path


@contextmanager
def running_job(home: Path, name: str) -> Iterator[Client]:
    """A job as `pliant run` has it: its folder is locked, and its coordinator's address is written there."""
    folder = JobDir(home / "jobs" / name)
    folder.make()
    with (
        folder.lock(RUNNER, 0),
        temporary_coordinator(folder, PROGRAM) as url,
        Client([url], read_token(folder.token)) as client,
    ):
        folder.write_endpoint(url, 1)
        client.send(name, Create(name, JobSpec(1, 2, Target(2))))
        yield client
    folder.forget_endpoint()


def stopped_job(home: Path, name: str, why: str | None = None) -> None:
    """A job that no process runs any more; cancelled if there is a reason."""
    with running_job(home, name) as client:
        if why is not None:
            client.send(name, Cancel(why))


def rows(out: str) -> dict[str, list[str]]:
    return {words[0]: words[1:] for words in (line.split(maxsplit=7) for line in out.splitlines()[1:])}


def test_running_stopped_and_ended_jobs_are_listed_without_a_token(home: Path) -> None:
    assert invoke("jobs").err == "There are no jobs. Start one with `pliant run SCRIPT`.\n"
    stopped_job(home, "digits")
    stopped_job(home, "old", "enough")
    JobDir(home / "jobs" / "joined").make()
    with running_job(home, "busy"):
        done = invoke("jobs")
        told = {each["name"]: each for each in invoke("jobs", "--json").json["jobs"]}
    assert (done.code, done.err) == (0, "")
    found = rows(done.out)
    assert {name: row[0] for name, row in found.items()} == {
        "busy": "waiting",
        "digits": "stopped",
        "joined": "unknown",
        "old": "cancelled",
    }
    assert "resume it with the same `pliant run` command" in done.out
    assert "it ran with the coordinator of another machine or user" in done.out
    assert found["old"][-1].endswith("enough")
    assert {name: each["runs"] for name, each in told.items()} == {
        "busy": True,
        "digits": False,
        "joined": False,
        "old": False,
    }
    assert told["digits"]["state"] == "waiting"
    assert told["old"]["since"] > 0


def test_the_jobs_of_this_machine_and_of_its_coordinator_are_one_list(home: Path, tmp_path: Path) -> None:
    stopped_job(home, "digits", "enough")
    with coordinator(home) as own:
        invoke("jobs", "create", "shared", "--workers", "2", "--coordinator", own.url)
        only = invoke("jobs", "--coordinator", own.url)
        assert [*rows(only.out)] == ["shared"]
    done = invoke("jobs")  # the coordinator's token is still there, and nothing answers
    assert [*rows(done.out)] == ["digits"]
    assert "Showing the jobs of `pliant run` only." in done.err


COMMANDS_WITH_A_JOB = [
    ("status", "digts"),
    ("resize", "digts", "2"),
    ("cancel", "digts"),
    ("audit", "digts"),
    ("report", "digts"),
    ("checkpoint", "digts"),
    ("logs", "digts"),
    ("drain", "digts", "m"),
    ("events", "digts"),
    ("chaos", "digts"),
    ("jobs", "delete", "digts"),
]


def test_every_command_answers_a_misspelt_job_with_the_jobs_that_exist(home: Path) -> None:
    stopped_job(home, "digits")
    stopped_job(home, "moons")
    for command in COMMANDS_WITH_A_JOB:
        done = invoke(*command)
        assert (done.code, done.out) == (3, ""), command
        assert done.err == "pliant: no job 'digts'; jobs here: digits, moons. Did you mean 'digits'?\n", command
    for command in (("checkpoints", "digts"), ("verify", "digts"), ("export", "digts", "--out", "x")):
        assert "on this machine. Did you mean 'digits'? For a job" in invoke(*command).err
    assert invoke("status", "zzz").err == "pliant: no job 'zzz'; jobs here: digits, moons.\n"


def test_a_misspelt_job_of_a_coordinator_is_answered_with_its_jobs(home: Path) -> None:
    with coordinator(home) as own:
        invoke("jobs", "create", "shared", "--workers", "2", "--coordinator", own.url)
        done = invoke("status", "sharde", "--coordinator", own.url)
        assert (done.code, done.err) == (
            3,
            f"pliant: no job 'sharde'; jobs at {own.url}: shared. Did you mean 'shared'?\n",
        )


def test_without_any_job_the_message_says_so_and_a_job_of_another_machine_is_named_as_such(home: Path) -> None:
    assert invoke("status", "digits").err == "pliant: no job 'digits'; there are no jobs here.\n"
    JobDir(home / "jobs" / "digits").make()
    done = invoke("status", "digits")
    assert done.code == 2
    assert "The coordinator of job digits is on another machine" in done.err
    assert "--coordinator" in done.err


def test_a_job_is_deleted_with_its_files_but_not_while_it_runs(home: Path, tmp_path: Path) -> None:
    with running_job(home, "busy"):
        done = invoke("jobs", "delete", "busy")
        assert (done.code, done.out) == (3, "")
        assert done.err.startswith("pliant: Job busy runs on this machine (process ")
        assert "`pliant cancel busy`" in done.err
    folder = JobDir(home / "jobs" / "busy")
    folder.checkpoints_at.write_text("/elsewhere\n")
    done = invoke("jobs", "delete", "busy")
    assert done.code == 0
    assert done.out.startswith("Deleted busy (")
    assert done.out.endswith(" Kept: /elsewhere.\n")
    assert [*(home / "jobs").iterdir()] == []
    (tmp_path / "linked").mkdir()
    (home / "jobs" / "link").symlink_to(tmp_path / "linked")
    assert "is a symbolic link" in invoke("jobs", "delete", "link").err
    assert (tmp_path / "linked").exists()


def test_pruning_deletes_ended_jobs_of_that_age_only(home: Path) -> None:
    stopped_job(home, "digits")
    stopped_job(home, "old", "enough")
    (home / "jobs" / ".gone.deleted" / "logs").mkdir(parents=True)
    assert invoke("jobs", "prune", "--older-than", "1d").err == "No job is that old; nothing was deleted.\n"
    assert not (home / "jobs" / ".gone.deleted").exists()
    assert invoke("jobs", "prune", "--older-than", "0s", "--json").json["deleted"][0]["job"] == "old"
    assert sorted(path.name for path in (home / "jobs").iterdir()) == ["digits"]
    for age in ("30", "d", "-1d", "1y"):
        assert f"{age!r} is not a number with a unit" in invoke("jobs", "prune", "--older-than", age).err


def test_completion_offers_the_jobs_of_this_machine(home: Path) -> None:
    JobDir(home / "jobs" / "digits").make()
    JobDir(home / "jobs" / "moons").make()
    assert completed(environment(home), "pliant", "status", "di") == ["digits"]
    assert completed(environment(home), "pliant", "jobs", "delete", "") == ["digits", "moons"]


def test_a_store_that_cannot_be_read_is_listed_with_the_reason(home: Path) -> None:
    folder = JobDir(home / "jobs" / "broken")
    folder.make()
    folder.store.write_text("no store")
    done = invoke("jobs", "--json")
    assert done.code == 0
    (told,) = json.loads(done.out)["jobs"]
    assert (told["name"], told["local"]) == ("broken", True)
    assert str(folder.store) in told["problem"]
