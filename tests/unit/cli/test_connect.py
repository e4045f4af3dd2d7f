import json
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.agent.coordinator.child import temporary_coordinator
from pliant.agent.job_dir import RUNNER, JobDir
from pliant.cli.connect import PROGRAM, Flags
from pliant.cli.local_jobs import job_names
from pliant.client import Client
from pliant.core.messages import Create
from pliant.core.model.job import JobSpec, Target
from pliant.credentials import CoordinatorAddress, make_token, read_token, write_token
from pliant.errors import BadInput
from pliant.settings import DEFAULT_URL
from unit.cli.program import PLIANT, Done, Running, coordinator, environment, invoke, real
from unit.stores.disk import as_other_user

Pliant = Callable[..., Done]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PLIANT_COORDINATOR", "PLIANT_TOKEN_FILE", "PLIANT_JOB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path))
    return tmp_path


def endpoint(home: Path, job: str, text: str) -> Path:
    path = home / "jobs" / job / "endpoint.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_with_nothing_said_it_is_the_default_port_and_the_home_s_token(home: Path) -> None:
    assert Flags().resolve() == Flags().resolve("demo") == CoordinatorAddress((DEFAULT_URL,), home / "token")


@pytest.mark.parametrize("act", [Flags().connect().__enter__, Flags(("http://h:1",)).connect().__enter__, job_names])
def test_a_home_that_others_can_write_to_is_refused(home: Path, act: Callable[[], object]) -> None:
    home.chmod(0o777)
    with pytest.raises(BadInput, match="Other users can write to PLIANT_HOME"):
        act()
    assert Flags(token_file=Path("mine")).resolve().token_file == Path("mine")


def test_a_job_s_own_coordinator_is_found_by_the_job_s_name(home: Path) -> None:
    endpoint(home, "demo", json.dumps({"url": "http://127.0.0.1:20001"}))
    own = home / "jobs" / "demo" / "token"
    assert Flags().resolve("demo") == CoordinatorAddress(("http://127.0.0.1:20001",), own)
    assert Flags().resolve("other") == Flags().resolve() == CoordinatorAddress((DEFAULT_URL,), home / "token")


def test_a_token_file_of_a_flag_goes_before_the_job_s_own(home: Path) -> None:
    endpoint(home, "demo", json.dumps({"url": "http://127.0.0.1:20001"}))
    assert Flags(token_file=Path("mine")).resolve("demo").token_file == Path("mine")
    assert Flags(("http://h:1",)).resolve("demo") == CoordinatorAddress(("http://h:1",), home / "token")


def test_the_environment_goes_before_files_and_a_flag_before_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint(home, "demo", json.dumps({"url": "http://127.0.0.1:20001"}))
    monkeypatch.setenv("PLIANT_COORDINATOR", "http://a:1, http://b:2")
    monkeypatch.setenv("PLIANT_TOKEN_FILE", "/run/join")
    assert Flags().resolve("demo") == CoordinatorAddress(("http://a:1", "http://b:2"), Path("/run/join"))
    assert Flags(("http://c:3",), Path("x")).resolve("demo") == CoordinatorAddress(("http://c:3",), Path("x"))


def test_a_job_that_nobody_runs_is_looked_up_in_its_store(home: Path) -> None:
    folder = JobDir(home / "jobs" / "demo")
    folder.make()
    endpoint_of_old = {"url": "http://127.0.0.1:20001", "token_file": str(folder.token)}
    folder.endpoint.write_text(json.dumps(endpoint_of_old))
    assert Flags().stopped_job("demo") is None  # there is no store: what is written there counts
    with (
        folder.lock(RUNNER, 0),
        temporary_coordinator(folder, PROGRAM) as url,
        Client([url], read_token(folder.token)) as client,
    ):
        client.send("demo", Create("demo", JobSpec(1, 2, Target(2))))
        assert Flags().stopped_job("demo") is None  # it is run
    assert Flags().stopped_job("demo") == folder
    assert Flags(("http://h:1",)).stopped_job("demo") is None
    assert Flags().stopped_job(None) is None
    assert invoke("status", "demo", "--json").json["state"] == "waiting"
    assert invoke("resize", "demo", "1").out == "demo: target set to 1 workers.\n"
    assert invoke("cancel", "demo", "--why", "enough").out == "demo is cancelled: enough\n"
    done = invoke("resize", "demo", "2")
    assert (done.code, done.err) == (3, "pliant: job demo is cancelled: enough\n")
    assert json.loads(folder.endpoint.read_text()) == endpoint_of_old
    assert not folder.is_run()


def test_a_store_that_no_coordinator_can_open_is_told_as_it_is(home: Path) -> None:
    folder = JobDir(home / "jobs" / "demo")
    folder.make()
    folder.store.write_text("no store")
    done = invoke("status", "demo")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("pliant: The coordinator does not start: pliant: ")
    assert f"Its log is {folder.logs / 'coordinator.log'}." in done.err


def test_those_who_look_at_a_job_take_turns(home: Path) -> None:
    folder = JobDir(home / "jobs" / "demo")
    folder.make()
    with temporary_coordinator(folder, PROGRAM) as url, Client([url], read_token(folder.token)) as client:
        client.send("demo", Create("demo", JobSpec(1, 2, Target(2))))
    command = [PLIANT, "status", "demo", "--json"]
    several = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(home)) for _ in range(3)]
    for each in several:
        out, _ = each.communicate(timeout=60)
        assert (each.returncode, json.loads(out)["name"]) == (0, "demo")


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"url": ', "\xff"])
def test_an_endpoint_file_that_says_nothing_is_bad_input(home: Path, text: str) -> None:
    path = endpoint(home, "demo", text)
    with pytest.raises(BadInput, match=f"{path} does not say where the coordinator is"):
        Flags().resolve("demo")


def test_several_coordinators_may_be_named_with_commas_or_repeatedly(running: Running, pliant: Pliant) -> None:
    closed = "http://127.0.0.1:9"
    assert pliant("jobs", "--coordinator", f"{closed},{running.url}", "--json").code == 0
    assert pliant("jobs", "--coordinator", closed, "--coordinator", running.url, "--json").code == 0


@pytest.mark.parametrize("url", ["", ",", "ftp://x", "127.0.0.1:7711", "http://h/path", "http://user@h"])
def test_what_is_no_url_is_bad_input(pliant: Pliant, url: str) -> None:
    done = pliant("jobs", "--coordinator", url)
    assert (done.code, done.out) == (2, "")
    assert "http://127.0.0.1:7711" in done.err


def test_without_a_token_a_newcomer_is_told_where_one_comes_from(home: Path) -> None:
    done = invoke("jobs", "create", "demo", "--workers", "2")
    assert done.code == 2
    assert f"{home / 'token'} does not exist. `pliant coordinator` creates it" in done.err
    done = invoke("jobs", "--token-file", str(home / "gone"))
    assert (done.code, f"The token file {home / 'gone'} does not exist" in done.err) == (2, True)


@pytest.mark.parametrize("command", [("jobs",), ("token", "create", "--scope", "read", "--out", "{home}/new")])
def test_a_home_that_may_not_be_looked_into_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.delenv("PLIANT_TOKEN_FILE", raising=False)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0)
        monkeypatch.setenv("PLIANT_HOME", folder)
        with as_other_user():
            done = invoke(*(each.format(home=folder) for each in command))
        Path(folder).chmod(0o700)
    assert (done.code, done.out) == (2, "")
    assert "cannot be read: Permission denied" in done.err


def test_a_token_that_others_can_read_is_not_used(running: Running, pliant: Pliant, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(running.token_file.read_bytes())
    path.chmod(0o644)
    done = pliant("jobs", "--token-file", str(path))
    assert done.code == 2
    assert f"chmod 600 {path}" in done.err


def test_a_stranger_s_token_is_not_allowed(pliant: Pliant, tmp_path: Path) -> None:
    stranger = make_token()
    write_token(tmp_path / "token", stranger)
    done = pliant("jobs", "--token-file", str(tmp_path / "token"))
    assert (done.code, done.out) == (6, "")
    assert "is unknown at http://127.0.0.1:" in done.err
    assert stranger.secret not in done.err


def test_where_nobody_answers_is_unreachable_and_doctor_is_named(home: Path) -> None:
    write_token(home / "token", make_token())
    with socket.socket() as taken:  # bound and not listening: no member can answer there
        taken.bind(("127.0.0.1", 0))
        done = real(environment(home), "jobs", "--coordinator", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert (done.code, done.out) == (5, "")
    assert "No coordinator answers at http://127.0.0.1:" in done.err
    assert "`pliant doctor`" in done.err


def test_ctrl_c_while_a_coordinator_does_not_answer_ends_it_without_a_trace(home: Path) -> None:
    write_token(home / "token", make_token())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = environment(home, PLIANT_COORDINATOR=f"http://127.0.0.1:{silent.getsockname()[1]}")
        with subprocess.Popen([PLIANT, "jobs"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
            link, _ = silent.accept()
            with link:
                assert link.recv(65536)
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err.strip()) == (130, b"", b"")


def test_a_standby_sends_a_command_on_to_the_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    store = f"sqlite:{tmp_path / 'store.db'}"
    monkeypatch.setenv("PLIANT_HOME", str(home))
    with coordinator(home, "--store", store) as leader, coordinator(home, "--store", store) as standby:
        assert invoke("jobs", "create", "demo", "--workers", "2", "--coordinator", leader.url).code == 0
        for command in (("status", "demo"), ("jobs",)):
            done = invoke(*command, "--coordinator", standby.url)
            assert (done.code, done.err) == (0, ""), command
            assert "demo" in done.out
