import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.running import Running, start, token_of
from pliant.agent.job_dir import JobDir
from pliant.agent.last_command import CommandLine
from pliant.agent.plan import RunPlan
from pliant.agent.process.script import Script
from pliant.agent.setup import (
    agent_address,
    agent_id,
    describe_clock_skew,
    describe_other_settings,
    install_id,
    open_job,
    register_agent,
    worker_environment,
    worker_token,
)
from pliant.client import Client
from pliant.core import messages as m
from pliant.core.messages import Cancel
from pliant.core.model.checkpoint import CheckpointPolicy
from pliant.core.model.job import JobSpec, JobState, Mode, Target
from pliant.core.model.names import MEMBER_NAME_MAX, AgentId, bad_name
from pliant.credentials import CoordinatorAddress, make_token, read_token, write_token
from pliant.errors import BadInput, NotAllowed, Refused
from pliant.wire.api import JobLine, Scope, TokenRequest

PLAN = RunPlan("demo", JobSpec(1, 4), Script("file", "train.py"), capacity=4)


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with start(home=tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> JobDir:
    made = JobDir(tmp_path / "jobs" / "demo")
    made.make()
    return made


def opened(client: Client, plan: RunPlan, *, own: bool = True) -> JobLine:
    return open_job(client, plan, own=own).now.job


def named(name: str, **settings: Any) -> RunPlan:
    return replace(PLAN, job=name, spec=replace(PLAN.spec, **settings))


def test_a_new_job_wants_as_many_as_may_be_or_as_was_said(coordinator: Running) -> None:
    client = coordinator.client()
    assert opened(client, named("new")).target == 4
    assert opened(client, named("two", target=Target(2))).target == 2


def test_a_job_that_is_there_keeps_its_target_unless_another_one_is_said(coordinator: Running, folder: JobDir) -> None:
    client = coordinator.client()
    first = opened(client, named("kept", target=Target(2)))
    assert opened(client, named("kept")) == first
    assert opened(client, named("kept", target=Target(3))).target == 3


def test_a_job_takes_the_settings_of_the_machine_that_runs_its_coordinator(coordinator: Running) -> None:
    client = coordinator.client()
    opened(client, named("sized"))
    other = named("sized", size_max=5, max_restarts=9)
    changed = open_job(client, other)
    assert (changed.now.spec, changed.now.job.target) == (other.spec, 5)
    said = "settings changed: --workers 1:4 -> 1:5, --max-restarts 3 -> 9"
    assert describe_other_settings(changed, other) == said
    joined = open_job(client, named("sized"), own=False)
    assert joined.now.spec == other.spec
    assert describe_other_settings(joined, named("sized")) == ""  # it chose nothing, as a pod does
    for name, said in (
        ("--workers", "--workers 1:5 -> 1:4"),
        ("--nnodes", "--workers 1:5 -> 1:4"),
        ("--max-restarts", "--max-restarts 9 -> 3"),
    ):
        chosen = replace(named("sized"), command=CommandLine("train.py", options={name: "x"}))
        wanted = f"the job keeps its own settings, not those of this command ({said})"
        assert describe_other_settings(joined, chosen) == wanted
    assert describe_other_settings(open_job(client, other), other) == ""
    assert describe_other_settings(open_job(client, named("unheard-of")), named("unheard-of")) == ""


def test_a_job_that_an_admin_created_can_be_run(coordinator: Running) -> None:
    client = coordinator.client()
    client.send("made", m.Create("made", JobSpec(1, 2, Target(2))))
    plan = named("made", size_max=2, mode=Mode.AUTO, checkpoints=CheckpointPolicy(seconds=600.0))
    assert open_job(client, plan, own=False).now.spec == JobSpec(1, 2, Target(2))
    assert open_job(client, plan).now.spec == plan.spec


def test_sizes_that_cannot_be_are_refused(coordinator: Running) -> None:
    client = coordinator.client()
    with pytest.raises(BadInput, match="sizes must satisfy"):
        opened(client, named("odd", size_max=0))


def test_a_job_says_whether_chaos_is_allowed(coordinator: Running) -> None:
    client = coordinator.client()
    for name, chaos in (("calm", False), ("chaotic", True)):
        opened(client, named(name, chaos_allowed=chaos))
        assert client.job(name).spec.chaos_allowed is chaos


def test_a_job_that_has_ended_is_attempted_again(coordinator: Running) -> None:
    client = coordinator.client()
    opened(client, named("ended"))
    client.send("ended", Cancel("enough"))
    assert opened(client, named("ended", size_max=2)).state is JobState.WAITING
    assert client.job("ended").attempt == 2


def test_a_job_that_has_ended_is_not_attempted_again_by_who_may_only_join(coordinator: Running) -> None:
    admin = coordinator.client()
    opened(admin, named("over"))
    admin.send("over", Cancel("enough"))
    client = coordinator.client(token_of(admin.create_token(TokenRequest(Scope.JOIN, "over")).token))
    with pytest.raises(Refused, match="over is cancelled: enough"):
        opened(client, named("over"), own=False)
    with pytest.raises(NotAllowed):
        opened(client, replace(named("over"), fresh=True), own=False)


def test_another_target_is_for_who_keeps_the_coordinator_to_say(coordinator: Running) -> None:
    client = coordinator.client()
    opened(client, named("sized-once", target=Target(2)))
    assert opened(client, named("sized-once", target=Target(3)), own=False).target == 2


def test_who_starts_afresh_begins_another_attempt_unless_the_job_runs(coordinator: Running) -> None:
    client = coordinator.client()
    plan = replace(named("fresh", mode=Mode.RELAUNCH), capacity=1)
    opened(client, plan)
    client.send("fresh", m.AgentJoin(AgentId("vm"), 1, "127.0.0.1", "home", "1"))
    client.send("fresh", m.AgentReady(AgentId("vm"), 0, (20001,)))
    with pytest.raises(Refused, match="fresh is running; cancel it"):
        opened(client, replace(plan, fresh=True), own=False)
    client.send("fresh", m.AgentLeave(AgentId("vm")))
    opened(client, replace(plan, fresh=True))
    assert client.job("fresh").attempt == 2
    opened(client, replace(plan, fresh=True))  # the answer was lost, say
    assert client.job("fresh").attempt == 2


def test_with_a_join_token_a_job_can_be_joined_and_not_created(coordinator: Running, folder: JobDir) -> None:
    admin = coordinator.client()
    opened(admin, named("theirs"))
    narrow = token_of(admin.create_token(TokenRequest(Scope.JOIN, "theirs")).token)
    client = coordinator.client(narrow)
    assert opened(client, named("theirs")).state is JobState.WAITING
    with pytest.raises(NotAllowed):
        opened(client, named("other"))
    place = CoordinatorAddress((coordinator.url,), folder.path / "given")
    assert worker_token(client, "theirs", folder, place, Scope.JOIN) == folder.path / "given"


def test_workers_get_a_token_that_joins_and_is_used_again_while_it_is_good(
    coordinator: Running, folder: JobDir
) -> None:
    client = coordinator.client()
    opened(client, named("tokens"))
    place = CoordinatorAddress((coordinator.url,), coordinator.home / "token")
    path = worker_token(client, "tokens", folder, place, Scope.ADMIN)
    assert path.stat().st_mode & 0o777 == 0o600
    first = token_of(path.read_text().strip())
    about = coordinator.client(first).about()
    assert (about.scope, about.job) == (Scope.JOIN, "tokens")
    assert worker_token(client, "tokens", folder, place, Scope.ADMIN) == path
    assert read_token(path) == first
    client.expire_token(first.id)
    worker_token(client, "tokens", folder, place, Scope.ADMIN)
    second = token_of(path.read_text().strip())
    assert second != first
    write_token(path, make_token())  # another coordinator's
    worker_token(client, "tokens", folder, place, Scope.ADMIN)
    assert coordinator.client(token_of(path.read_text().strip())).about().job == "tokens"


def test_threads_are_one_unless_somebody_chose(folder: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    place = CoordinatorAddress(("http://a:1", "http://b:2"), Path("unused"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    env = worker_environment(PLAN, folder, place, Path("/t"), AgentId("vm"))
    assert (env["OMP_NUM_THREADS"], env["PLIANT_COORDINATOR"]) == ("1", "http://a:1,http://b:2")
    assert (env["PLIANT_GRACE_S"], env["PLIANT_TOKEN_FILE"], env["PLIANT_AGENT"]) == ("30", "/t", "vm")
    assert "PLIANT_OVERRIDE" not in env
    overriding = worker_environment(replace(PLAN, override=True), folder, place, Path("/t"), AgentId("vm"), 7)
    assert overriding["PLIANT_OVERRIDE"] == "7"
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert "OMP_NUM_THREADS" not in worker_environment(PLAN, folder, place, Path("/t"), AgentId("vm"))


@pytest.mark.parametrize(
    ("mode", "devices", "limit"), [(Mode.LIVE, 1, "2"), (Mode.LIVE, 0, None), (Mode.RELAUNCH, 1, None)]
)
def test_workers_that_see_gpus_and_go_on_through_changes_share_few_arenas(
    folder: JobDir, monkeypatch: pytest.MonkeyPatch, mode: Mode, devices: int, limit: str | None
) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    plan = replace(PLAN, spec=replace(PLAN.spec, mode=mode), devices=devices)
    arguments = (folder, CoordinatorAddress(("http://a:1",), Path("unused")), Path("/t"), AgentId("vm"))
    assert worker_environment(plan, *arguments).get("MALLOC_ARENA_MAX") == limit
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")
    assert "MALLOC_ARENA_MAX" not in worker_environment(plan, *arguments)


def test_one_of_our_name_elsewhere_is_waited_for_as_long_as_it_may_live(coordinator: Running) -> None:
    client = coordinator.client()
    opened(client, named("twins"))
    client.send("twins", m.AgentJoin(AgentId("vm"), 1, "10.0.0.1", "one", "1"))
    said: list[str] = []
    waits = iter((False, True))
    register_agent(
        client, "twins", m.AgentJoin(AgentId("vm"), 1, "10.0.0.2", "two", "1"), 60.0, said.append, lambda _: next(waits)
    )
    why = "another agent is called vm, at 10.0.0.1: set PLIANT_AGENT to another name here"
    assert said == [f"{why}; if that agent is gone, its lease expires within 90 s"]
    with pytest.raises(Refused, match="another agent is called vm"):
        register_agent(
            client, "twins", m.AgentJoin(AgentId("vm"), 1, "10.0.0.2", "two", "1"), -1.0, said.append, lambda _: False
        )


def test_a_restarted_agent_is_the_same_and_another_machine_s_is_not(folder: JobDir, tmp_path: Path) -> None:
    other = JobDir(tmp_path / "elsewhere" / "jobs" / "demo")
    other.make()
    assert install_id(folder) == install_id(folder) != install_id(other)


def test_a_clock_that_is_off_is_told_and_one_that_is_not_known_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    assert describe_clock_skew(9_990.0).startswith("this machine's clock is 10 s ahead of the coordinator's")
    assert describe_clock_skew(13_600.0).startswith("this machine's clock is 3600 s behind the coordinator's")
    assert describe_clock_skew(9_997.0) == describe_clock_skew(0.0) == ""


def test_the_address_is_the_one_said_if_it_is_this_machine_s(folder: JobDir) -> None:
    place = CoordinatorAddress(("http://127.0.0.1:7711",), Path("unused"))
    assert agent_address(PLAN, place) == "127.0.0.1"
    assert agent_address(replace(PLAN, local_addr="127.0.0.5"), place) == "127.0.0.5"
    env = worker_environment(replace(PLAN, local_addr="localhost"), folder, place, Path("/t"), AgentId("vm"))
    assert env["PLIANT_ADDRESS"] in ("127.0.0.1", "::1")
    with pytest.raises(BadInput, match=r"192\.0\.2\.1 is not an address of this machine"):
        agent_address(replace(PLAN, local_addr="192.0.2.1"), place)
    with pytest.raises(BadInput, match=r"no-such-host\.invalid is neither an address nor a host name"):
        agent_address(replace(PLAN, local_addr="no-such-host.invalid"), place)


def test_an_agent_is_called_what_pliant_agent_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIANT_AGENT", "gpu-7")
    assert agent_id() == "gpu-7"
    for wrong in ("no name", "x" * 64):
        monkeypatch.setenv("PLIANT_AGENT", wrong)
        with pytest.raises(BadInput, match="PLIANT_AGENT cannot be an agent's name"):
            agent_id()


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("gpu-1.example.org", "gpu-1"),
        ("my_host", "my-host"),
        ("-", "agent"),
        ("x" * 64, "x" * 63),
        ("training-gpt-imagenet-worker-0", "training-gpt-imagenet-worker-0"),
        ("a" * 62 + "-b", "a" * 62),
    ],
)
def test_an_agent_is_called_as_its_machine(monkeypatch: pytest.MonkeyPatch, host: str, name: str) -> None:
    monkeypatch.delenv("PLIANT_AGENT", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert agent_id() == name
    assert bad_name(f"{agent_id()}-g123456789.1000.12", MEMBER_NAME_MAX) == ""
