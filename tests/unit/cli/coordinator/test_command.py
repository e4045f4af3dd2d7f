import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from pliant.cli.store_place import SqlitePlace
from unit.cli.program import PLIANT, Done, Running, coordinator, environment, invoke, real, until

Pliant = Callable[..., Done]


def told(home: Path, *args: str, lines: int) -> list[str]:
    """The first lines a coordinator says to a person; it is stopped then, and must end well."""
    command = [PLIANT, "coordinator", "--listen", "127.0.0.1:0", *args]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(home)
    ) as it:
        assert it.stdout is not None
        said = [it.stdout.readline().rstrip("\n") for _ in range(lines)]
        it.terminate()
        rest, _ = it.communicate(timeout=20)
    assert (it.returncode, rest) == (0, "")
    return said


def test_a_first_start_says_where_everything_is(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    where, store, token, stop = told(home, lines=4)
    assert where.startswith("Coordinator at http://127.0.0.1:")
    assert ":0 " not in where
    assert "(process " in where
    assert store.startswith(f"Store: sqlite:{home}/store.db (")
    assert store.endswith(", 0 jobs)")
    assert token == f"Token: {home}/token (created)"
    assert "Ctrl-C" in stop
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    secret = (home / "token").read_text().strip()
    assert secret not in "".join((where, store, token, stop))
    where, store, token, _ = told(home, lines=4)
    assert token == f"Token: {home}/token (existing)"


def test_a_store_in_memory_says_that_nothing_outlives_it(tmp_path: Path) -> None:
    *_, last = told(tmp_path, "--store", "memory:", lines=4)
    assert last == "Press Ctrl-C to stop. The store is in memory and lost at the end; --store sqlite:PATH keeps it."


def test_the_ready_line_is_for_programs(running: Running) -> None:
    ready = running.ready
    assert ready["pid"] == running.process.pid
    assert (ready["store"], ready["jobs"], ready["leads"], ready["token_made"]) == ("memory:", 0, True, True)
    assert ready["token_file"] == str(running.token_file)
    assert running.token_file.read_text().strip() not in json.dumps(ready)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well_and_what_it_kept_is_there_at_the_next_start(
    tmp_path: Path, number: signal.Signals
) -> None:
    store = f"sqlite:{tmp_path / 'jobs.db'}"
    with coordinator(tmp_path, "--store", store) as first:
        place = ("--coordinator", first.url, "--token-file", str(first.token_file))
        assert invoke("jobs", "create", "kept", "--workers", "2", *place).code == 0
        first.process.send_signal(number)
        assert first.process.wait(20) == 0
        assert "stopping: nothing is lost" in first.log.read_text()
    with coordinator(tmp_path, "--store", store) as second:
        assert (second.ready["jobs"], second.ready["leads"], second.ready["token_made"]) == (1, True, False)


def test_a_second_ctrl_c_does_not_wait_for_anybody(tmp_path: Path) -> None:
    with (
        coordinator(tmp_path) as found,
        socket.create_connection(("127.0.0.1", int(found.url.rpartition(":")[2]))) as slow,
    ):
        # A request whose body does not come keeps an answer under way.
        token = found.token_file.read_text().strip()
        head = (
            f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: 99\r\n\r\n"
        )
        slow.sendall(head.encode())
        with found.client() as client:
            until(client.is_healthy, "an answer")
        found.process.send_signal(signal.SIGINT)
        until(lambda: "stopping" in found.log.read_text(), "the first")
        found.process.send_signal(signal.SIGINT)
        assert found.process.wait(4) == 0  # without it, 5 s


def test_two_on_one_store_say_who_decides_and_the_second_takes_over(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'jobs.db'}"
    with coordinator(tmp_path, "--store", store) as first, coordinator(tmp_path, "--store", store) as second:
        assert (first.ready["leads"], second.ready["leads"]) == (True, False)
        *_, role, takes_over = told(tmp_path, "--store", store, lines=5)
        assert role.startswith("Press Ctrl-C to stop. This coordinator is a standby: ")
        assert role.endswith(f" leads at {first.url}.")
        assert takes_over == "It takes over when no other coordinator leads for this store."
        first.process.kill()
        first.process.wait()
        until(lambda: "this coordinator leads now" in second.log.read_text(), "the takeover")
        both = f"{first.url},{second.url}"
        done = invoke("jobs", "--coordinator", both, "--token-file", str(first.token_file), "--json")
        assert done.json == {"jobs": []}


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        (("--listen", "nowhere"), 2, "--listen must be HOST:PORT"),
        (
            ("--listen", "0.0.0.0:0"),
            2,
            "0.0.0.0 can be reached from other machines. Pass --expose",
        ),
        (
            ("--listen", "0.0.0.0:0", "--expose"),
            2,
            "Without TLS, tokens would cross the network of 0.0.0.0 unencrypted. Pass --tls-cert and --tls-key",
        ),
        (("--tls-cert", "a.pem"), 2, "--tls-cert and --tls-key belong together. Pass both, or neither."),
        (("--tls-client-ca", "ca.pem"), 2, "--tls-client-ca needs --tls-cert and --tls-key."),
        (
            ("--tls-cert", "a.pem", "--tls-key", "a.key", "--insecure"),
            2,
            "--insecure and --tls-cert cannot be combined.",
        ),
        (
            ("--tls-cert", "/no/such.pem", "--tls-key", "/no/such.key"),
            2,
            "The key /no/such.key cannot be read: No such file or directory.",
        ),
        (("--listen", "127.0.0.1:0", "--store", "redis:x"), 2, "--store must be sqlite:PATH, etcd:HOST:PORT,"),
        (("--listen", "127.0.0.1:0", "--store", "etcd:x:y"), 2, "'x:y' is no HOST:PORT"),
        (("--listen", "127.0.0.1:0", "--store", "etcd:127.0.0.1:1"), 4, "does not answer; nothing was written"),
        (("--listen", "127.0.0.1:0", "--store", "etcd:192.0.2.1:2379"), 2, "Set PLIANT_ETCD_CA_FILE. On a network"),
        (
            ("--listen", "127.0.0.1:0", "--store", "sqlite:/no/such/place.db"),
            4,
            "The directory /no/such does not exist",
        ),
    ],
)
def test_what_cannot_be_is_said_at_once(tmp_path: Path, args: tuple[str, ...], code: int, why: str) -> None:
    done = real(environment(tmp_path / "home"), "coordinator", *args)
    assert (done.code, done.out) == (code, "")
    assert (tmp_path / "home").exists() == (code == 4)  # nothing is made for what cannot even be read
    assert why in done.err


def test_a_port_that_is_taken_is_said_before_anything_is_made(running: Running, tmp_path: Path) -> None:
    done = real(environment(tmp_path / "home"), "coordinator", "--listen", running.url.removeprefix("http://"))
    assert done.code == 2
    assert "Address already in use. Perhaps a coordinator runs there already" in done.err
    assert not (tmp_path / "home").exists()


def test_a_home_that_cannot_be_made_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = real(environment(tmp_path / "file" / "home"), "coordinator", "--listen", "127.0.0.1:0")
    assert done.code == 2
    assert "PLIANT_HOME cannot be created" in done.err


def test_a_home_that_others_may_write_to_is_refused_before_anything_is_in_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    done = real(environment(tmp_path), "coordinator", "--listen", "127.0.0.1:0")
    assert (done.code, done.out) == (2, "")
    assert f"Other users can write to PLIANT_HOME {tmp_path} (mode 1777)" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_home_of_our_own_in_a_place_that_all_may_write_to_will_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with coordinator(tmp_path / "home") as found:
        assert found.ready["leads"]


@pytest.mark.parametrize("end", ["", "-wal", "-shm", ".mark"])
def test_a_store_that_others_may_write_to_is_refused_and_not_read(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"jobs.db{end}"
    path.touch()
    path.chmod(0o666)
    env = environment(tmp_path / "home")
    done = real(env, "coordinator", "--listen", "127.0.0.1:0", "--store", f"sqlite:{tmp_path / 'jobs.db'}")
    assert (done.code, done.out) == (2, "")
    assert f"{path} (mode 0666) and could grant access" in done.err
    assert path.read_bytes() == b""


def test_a_store_that_somebody_puts_there_while_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"

    def quicker(_: SqlitePlace) -> AbstractContextManager[None]:
        path.touch()
        path.chmod(0o666)
        return nullcontext()

    monkeypatch.setattr("pliant.cli.store_place.SqlitePlace.open", quicker)
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path / "home"))
    done = invoke("coordinator", "--listen", "127.0.0.1:0", "--store", f"sqlite:{path}")
    assert (done.code, "Other users can write to" in done.err) == (2, True)


def test_an_exposed_one_answers_by_the_names_it_was_given(tmp_path: Path) -> None:
    args = ("--listen", "0.0.0.0:0", "--expose", "--insecure", "--host", "pliant.test", "--log-json")
    with coordinator(tmp_path, *args) as found:
        port = int(found.url.rpartition(":")[2])
        for name, status in ((b"pliant.test", b"200"), (b"other.test", b"421")):
            with socket.create_connection(("127.0.0.1", port)) as link:
                link.sendall(b"GET /healthz HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % name)
                assert link.recv(4096).split()[1] == status
        found.process.terminate()
        found.process.wait(20)
        assert [json.loads(text)["level"] for text in found.log.read_text().splitlines()] == ["info"]


def test_no_token_is_ever_in_the_log(running: Running, pliant: Pliant) -> None:
    secret = running.token_file.read_text().strip().split("_", 2)[2]  # which may hold an underline itself
    pliant("jobs", "create", "logged", "--workers", "2")
    assert "job logged created" in running.log.read_text()
    assert secret not in running.log.read_text()
    command = Path(f"/proc/{running.process.pid}/cmdline").read_bytes() + os.fsencode(str(running.ready))
    assert secret.encode() not in command
