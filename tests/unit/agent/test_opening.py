import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.running import Running, start, token_of
from pliant.agent.folder import Folder
from pliant.agent.opening import Elsewhere, Plan, agent_id, environment, open_job, worker_token
from pliant.core.messages import Cancel
from pliant.core.model import AgentId, JobState
from pliant.core.names import bad_name
from pliant.credentials import make_token, read_token, write_token
from pliant.errors import BadInput, NotAllowed, Refused
from pliant.wire.api import Scope, TokenWish

PLAN = Plan("demo", 1, 4, None, ("python", "train.py"))


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with start(home=tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "jobs" / "demo")
    made.make()
    return made


def named(name: str) -> Plan:
    return replace(PLAN, job=name)


def test_a_new_job_wants_as_many_as_may_be_or_as_was_said(coordinator: Running, folder: Folder) -> None:
    client = coordinator.client()
    assert open_job(client, named("new"), folder).target == 4
    assert open_job(client, replace(named("two"), target=2), folder).target == 2


def test_a_job_that_is_there_keeps_its_target_unless_another_one_is_said(coordinator: Running, folder: Folder) -> None:
    client = coordinator.client()
    plan = replace(named("kept"), target=2)
    first = open_job(client, plan, folder)
    assert open_job(client, replace(plan, target=None), folder) == first
    assert open_job(client, replace(plan, target=3), folder).target == 3


def test_a_job_of_other_sizes_is_refused(coordinator: Running, folder: Folder) -> None:
    client = coordinator.client()
    open_job(client, named("sized"), folder)
    with pytest.raises(Refused, match="sized exists with other settings"):
        open_job(client, replace(named("sized"), size_max=5), folder)
    with pytest.raises(BadInput, match="sizes must satisfy"):
        open_job(client, replace(named("odd"), size_max=0), folder)


def test_a_job_that_has_ended_is_refused_with_what_to_do(coordinator: Running, folder: Folder) -> None:
    client = coordinator.client()
    open_job(client, named("ended"), folder)
    client.send("ended", Cancel("enough"))
    with pytest.raises(Refused, match=f"ended is cancelled: enough. .* another name with --job, or move {folder.path}"):
        open_job(client, named("ended"), folder)


def test_with_a_join_token_a_job_can_be_joined_and_not_created(coordinator: Running, folder: Folder) -> None:
    admin = coordinator.client()
    open_job(admin, named("theirs"), folder)
    narrow = token_of(admin.make_token(TokenWish(Scope.JOIN, "theirs")).token)
    client = coordinator.client(narrow)
    assert open_job(client, named("theirs"), folder).state is JobState.WAITING
    with pytest.raises(NotAllowed):
        open_job(client, named("other"), folder)
    place = Elsewhere((coordinator.url,), folder.path / "given")
    assert worker_token(client, "theirs", folder, place, Scope.JOIN) == folder.path / "given"


def test_workers_get_a_token_that_joins_and_is_used_again_while_it_is_good(
    coordinator: Running, folder: Folder
) -> None:
    client = coordinator.client()
    open_job(client, named("tokens"), folder)
    place = Elsewhere((coordinator.url,), coordinator.home / "token")
    path = worker_token(client, "tokens", folder, place, Scope.ADMIN)
    assert path.stat().st_mode & 0o777 == 0o600
    first = token_of(path.read_text().strip())
    about = coordinator.client(first).about()
    assert (about.scope, about.job) == (Scope.JOIN, "tokens")
    assert worker_token(client, "tokens", folder, place, Scope.ADMIN) == path
    assert read_token(path) == first
    client.end_token(first.id)
    worker_token(client, "tokens", folder, place, Scope.ADMIN)
    second = token_of(path.read_text().strip())
    assert second != first
    write_token(path, make_token())  # another coordinator's
    worker_token(client, "tokens", folder, place, Scope.ADMIN)
    assert coordinator.client(token_of(path.read_text().strip())).about().job == "tokens"


def test_threads_are_one_unless_somebody_chose(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Elsewhere(("http://a:1", "http://b:2"), Path("unused"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    env = environment(PLAN, folder, place, Path("/t"), AgentId("vm"))
    assert (env["OMP_NUM_THREADS"], env["PLIANT_COORDINATOR"]) == ("1", "http://a:1,http://b:2")
    assert (env["PLIANT_GRACE_S"], env["PLIANT_TOKEN_FILE"], env["PLIANT_AGENT"]) == ("30", "/t", "vm")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert "OMP_NUM_THREADS" not in environment(PLAN, folder, place, Path("/t"), AgentId("vm"))


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("gpu-1.example.org", "gpu-1"),
        ("my_host", "my-host"),
        ("-", "agent"),
        ("x" * 64, "x" * 24),
        ("a" * 23 + "-b", "a" * 23),
    ],
)
def test_an_agent_is_called_as_its_machine(monkeypatch: pytest.MonkeyPatch, host: str, name: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert agent_id() == name
    assert bad_name(f"{agent_id()}-123456789.1000") == ""
