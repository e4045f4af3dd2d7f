import os
import resource
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pliant import settings
from pliant.cli.doctor import checks, training_checks
from pliant.cli.doctor.finding import Finding, Level
from pliant.credentials import make_token, write_token
from pliant.wire.api import About, Scope
from unit.cli.program import Done, Running, coordinator, invoke
from unit.stores.disk import as_other_user

Pliant = Callable[..., Done]


def findings(done: Done) -> dict[str, tuple[str, str, str]]:
    """By check: how bad, what is, what to do."""
    return {each["check"]: (each["level"], each["message"], each["fix"]) for each in done.json["checks"]}


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without anything, and no member listening."""
    for name in ("PLIANT_COORDINATOR", "PLIANT_TOKEN_FILE", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLIANT_COORDINATOR", "http://127.0.0.1:9")
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_good_set_up_has_no_problem(running: Running, pliant: Pliant) -> None:
    done = pliant("doctor", "--json")
    found = findings(done)
    assert (done.code, done.json["ok"]) == (0, True), done.out
    assert found[f"coordinator {running.url}"][:2] == ("ok", "a coordinator answers")
    assert found["credential"][1] == "the token is accepted, with scope admin"
    assert found["leader"][1] == f"yes, for store {running.ready['identity'][:8]}"
    assert {
        "python",
        "packages",
        "home",
        "disk",
        "files",
        "proxies",
        "token",
        "port",
        "version",
        "torch",
        "gpus",
        "gloo",
    } <= found.keys()
    assert running.token_file.read_text().strip() not in done.out
    assert found["clock"][0] == "ok"
    assert found["clock"][1].endswith(", as the coordinator's")


def test_a_machine_without_a_coordinator_is_fine_because_pliant_run_starts_its_own(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLIANT_COORDINATOR")
    done = invoke("doctor", "--json")
    assert (done.code, done.json["ok"]) == (0, True), done.out
    assert findings(done)["coordinator"][0] == "ok"
    assert "token" not in findings(done)
    empty.mkdir(mode=0o700)
    write_token(empty / "token", make_token())  # a coordinator ran here once
    monkeypatch.setattr(settings, "DEFAULT_URL", "http://127.0.0.1:9")
    done = invoke("doctor", "--json")
    assert (done.code, findings(done)["coordinator http://127.0.0.1:9"][0]) == (0, "warning"), done.out


def test_torch_gpus_and_the_interface_of_gloo_are_checked(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    level, message, fix = findings(invoke("doctor", "--json"))["gloo"]
    assert (level, "GLOO_SOCKET_IFNAME names nosuch0; the interfaces here are lo" in message) == ("problem", True)
    assert fix.startswith("Unset GLOO_SOCKET_IFNAME")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert training_checks.check_gloo_interface().message == "uses lo (GLOO_SOCKET_IFNAME)"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    assert "The host name no-such-host.invalid cannot be resolved" in training_checks.check_gloo_interface().message
    monkeypatch.setattr(socket, "gethostname", lambda: "192.0.2.1")
    assert "192.0.2.1, not to this machine" in training_checks.check_gloo_interface().message
    assert training_checks.check_torch() == Finding("torch", Level.OK, f"{torch_version()}, with gloo")
    monkeypatch.setattr("torch.distributed.is_gloo_available", lambda: False)
    without = training_checks.check_torch()
    assert (without.level, "live training is not affected" in without.message) == (Level.WARNING, True)
    monkeypatch.setattr(metadata, "version", missing_package)
    assert training_checks.check_torch().level is Level.WARNING


def torch_version() -> str:
    return metadata.version("torch")


def missing_package(name: str) -> str:
    raise metadata.PackageNotFoundError(name)


def test_a_clock_that_differs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    assert training_checks.check_clock(now).level is Level.OK
    assert " 60 s ahead of the coordinator's clock." in training_checks.check_clock(now - 60).message
    assert " 60 s behind the coordinator's clock." in training_checks.check_clock(now + 60).message
    monkeypatch.setattr(time, "time", lambda: 86400.0)
    assert "is before Pliant was installed" in training_checks.check_clock(None).message


def test_people_read_lines_with_what_to_do_below(empty: Path) -> None:
    done = invoke("doctor")
    assert done.code == 1
    assert f"ok       home: {empty} does not exist yet. `pliant run` creates it.\n" in done.out
    assert (
        "problem  coordinator http://127.0.0.1:9: No coordinator answers: [Errno 111] Connection refused.\n" in done.out
    )
    assert "-> Start one with `pliant coordinator`, or pass the URL of another one." in done.out


def test_a_set_up_that_was_never_started_says_how_to_start(empty: Path) -> None:
    found = findings(invoke("doctor", "--json"))
    assert found["home"][0] == "ok"
    assert found["token"][0] == "problem"
    assert "Start a coordinator here, or copy a token" in found["token"][2]


@pytest.mark.parametrize(("mode", "level"), [(0o755, "warning"), (0o777, "problem"), (0o700, "ok")])
def test_a_home_that_others_can_enter_is_found(empty: Path, mode: int, level: str) -> None:
    empty.mkdir()
    empty.chmod(mode)
    found = findings(invoke("doctor", "--json"))["home"]
    assert (found[0], found[2]) == (level, "" if level == "ok" else f"Run: chmod 700 {empty}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another group")
def test_a_home_that_only_the_pod_s_own_group_can_write_is_fine(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs_group = 54321  # without a name, as in a pod
    empty.mkdir()
    os.chown(empty, -1, fs_group)
    empty.chmod(0o2770)
    assert findings(invoke("doctor", "--json"))["home"][0] == "problem"
    monkeypatch.setattr(os, "getgroups", lambda: [fs_group])
    assert findings(invoke("doctor", "--json"))["home"][0] == "ok"


def test_a_home_that_is_a_file_or_somebody_else_s_is_found(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty.write_text("")
    assert "is not a folder" in findings(invoke("doctor", "--json"))["home"][1]
    empty.unlink()
    empty.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "belongs to another user" in findings(invoke("doctor", "--json"))["home"][1]


def test_a_home_that_may_not_be_looked_into_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIANT_COORDINATOR", "http://127.0.0.1:9")
    monkeypatch.delenv("PLIANT_TOKEN_FILE", raising=False)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0)
        monkeypatch.setenv("PLIANT_HOME", f"{folder}/home")
        with as_other_user():
            done = invoke("doctor", "--json")
        Path(folder).chmod(0o700)
    found = findings(done)
    assert done.code == 1
    assert {name: found[name][0] for name in ("home", "disk", "token")} == dict.fromkeys(
        ("home", "disk", "token"), "problem"
    )
    assert found["home"][1] == f"{folder}/home: Permission denied."
    assert found["disk"][1] == f"{folder}/home cannot be read: Permission denied."
    assert "cannot be read: Permission denied" in found["token"][1]
    assert "Start a coordinator here" not in found["token"][2]


def test_a_token_with_the_wrong_mode_or_form_is_found(running: Running, pliant: Pliant, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(running.token_file.read_bytes())
    path.chmod(0o640)
    level, say, _ = findings(pliant("doctor", "--json", "--token-file", str(path)))["token"]
    assert (level, f"chmod 600 {path}" in say) == ("problem", True)
    path.write_text("a password")
    path.chmod(0o600)
    done = pliant("doctor", "--json", "--token-file", str(path))
    assert "are not a token" in findings(done)["token"][1]
    assert findings(done)[f"coordinator {running.url}"][0] == "ok"
    assert "a password" not in done.out


def test_a_token_that_is_not_accepted_is_found(running: Running, pliant: Pliant, tmp_path: Path) -> None:
    pliant("token", "create", "--scope", "read", "--label", "d", "--out", str(tmp_path / "t"))
    credential = findings(pliant("doctor", "--json", "--token-file", str(tmp_path / "t")))["credential"]
    assert credential[0] == "ok"
    assert "with scope read" in credential[1]
    (line,) = (each for each in pliant("token", "list", "--json").json["tokens"] if each["label"] == "d")
    pliant("token", "revoke", line["id"])
    done = pliant("doctor", "--json", "--token-file", str(tmp_path / "t"))
    assert done.code == 1
    assert "has expired" in findings(done)["credential"][1]


class Stranger(BaseHTTPRequestHandler):
    """Something else that speaks HTTP; `said` are headers it sends."""

    said: dict[str, str]
    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(str(self.headers))
        self.send_response(200)
        for name, value in self.said.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[tuple[str, type[Stranger]]]:
    handler = type("Handler", (Stranger,), {"said": {}, "seen": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


def test_something_else_on_that_port_is_found_and_not_shown_the_token(
    running: Running, pliant: Pliant, stranger: tuple[str, type[Stranger]]
) -> None:
    url, handler = stranger
    done = pliant("doctor", "--json", "--coordinator", url)
    assert done.code == 1
    level, say, do = findings(done)[f"coordinator {url}"]
    assert (level, say) == ("problem", "A server answers with status 200, but it is not a Pliant coordinator.")
    assert "another port" in do
    handler.said = {"pliant-protocol": "0"}
    assert (
        "The coordinator uses protocol 0"
        in findings(pliant("doctor", "--json", "--coordinator", url))[f"coordinator {url}"][1]
    )
    assert len(handler.seen) == 2
    assert not any("authorization" in head.lower() for head in handler.seen)


@pytest.mark.parametrize("url", ["x", "http://h:99999", "http://[::", "http://h:x", "http://h/path"])
def test_a_url_that_cannot_be_is_found(pliant: Pliant, url: str) -> None:
    done = pliant("doctor", "--json", "--coordinator", url)
    assert done.code == 1
    assert findings(done)[f"coordinator {url}"][2] == "Correct --coordinator or PLIANT_COORDINATOR."


@pytest.mark.parametrize("url", ["http://a..b", "https://127.0.0.1:9", "http://no.such.name.invalid"])
def test_a_place_that_cannot_be_reached_is_found(pliant: Pliant, url: str) -> None:
    level, say, _ = findings(pliant("doctor", "--json", "--coordinator", url))[f"coordinator {url}"]
    assert (level, say.startswith("No coordinator answers: ")) == ("problem", True)


def test_something_that_does_not_even_speak_http_is_found(pliant: Pliant) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def greet() -> None:
            link, _ = server.accept()
            with link:
                link.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                link.recv(65536)

        thread = threading.Thread(target=greet)
        thread.start()
        done = pliant("doctor", "--json", "--coordinator", url)
        thread.join()
    assert findings(done)[f"coordinator {url}"][0] == "problem"


def test_a_coordinator_that_stands_by_is_a_warning(tmp_path: Path) -> None:
    store = ("--store", f"sqlite:{tmp_path / 'jobs.db'}")
    with coordinator(tmp_path, *store) as first, coordinator(tmp_path, *store) as second:
        done = invoke("doctor", "--json", "--coordinator", second.url, "--token-file", str(first.token_file))
    assert findings(done)["leader"][0] == "warning"


def test_another_version_on_the_other_side_is_a_warning() -> None:
    found = {
        each.check: each
        for each in checks._check_leader_and_version(About("9.9", "1", "abc", True, "", 10.0, Scope.READ, None))
    }
    assert (found["version"].level, "9.9" in found["version"].message) == (Level.WARNING, True)


def test_a_port_that_the_system_hands_out_is_a_warning() -> None:
    assert checks._check_port(7711).level is Level.OK
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert checks._check_port((low + high) // 2).level is Level.WARNING


@pytest.mark.parametrize(("url", "port"), [("http://h", 80), ("https://h", 443), ("http://[::1]:7711", 7711)])
def test_a_url_without_a_port_has_one_all_the_same(url: str, port: int) -> None:
    assert checks._port_of(url) == port


def test_proxies_are_named_and_ignored(running: Running, pliant: Pliant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    done = pliant("doctor", "--json")
    assert done.code == 0
    assert findings(done)["proxies"][1].startswith("http_proxy set; Pliant ignores them")


@pytest.mark.parametrize(
    ("kind", "free", "level"),
    [
        ("ext4", 10 * 1024**3, Level.OK),
        ("ext4", 100 * 1024**2, Level.WARNING),
        ("ext4", 1024**2, Level.PROBLEM),
        ("nfs4", 10 * 1024**3, Level.PROBLEM),
        ("tmpfs", 10 * 1024**3, Level.WARNING),
        ("", 10 * 1024**3, Level.OK),
    ],
)
def test_a_disk_that_is_full_or_far_away_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, free: int, level: Level
) -> None:
    monkeypatch.setattr(checks, "_file_system", lambda path: kind)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert checks._check_disk(tmp_path / "not" / "yet").level is level


def test_the_file_system_is_that_of_the_nearest_mount() -> None:
    assert checks._file_system(Path("/proc/self")) == "proc"
    assert checks._file_system(Path("/")) not in ("", "proc")


@pytest.mark.parametrize(
    ("hard", "level"), [(1024, Level.WARNING), (65536, Level.OK), (resource.RLIM_INFINITY, Level.OK)]
)
def test_too_few_open_files_are_a_warning(monkeypatch: pytest.MonkeyPatch, hard: int, level: Level) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, hard))
    assert checks._check_file_limit().level is level


@pytest.mark.parametrize(
    ("there", "said"),
    [({"click": "8.0.1", "rich": "14"}, "click 8.0.1 is older than 8.1"), ({"click": "9"}, "rich is missing")],
)
def test_a_package_that_is_missing_or_too_old_is_found(
    monkeypatch: pytest.MonkeyPatch, there: dict[str, str], said: str
) -> None:
    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(metadata, "requires", lambda name: ["click>=8.1", "rich>=13.7", 'numpy>=1; extra == "train"'])
    monkeypatch.setattr(metadata, "version", version)
    found = checks._check_packages()
    assert found.level is Level.PROBLEM
    assert said in found.message
