"""The `pliant` command in tests: called within this process, or as the real program."""

import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pliant.cli.main import main
from pliant.client import Client
from pliant.credentials import read_token

PLIANT = str(Path(sys.executable).with_name("pliant"))
SOON_S = 60.0
_TICK = threading.Event()  # never set: between two looks others get their turn


@dataclass(frozen=True)
class Done:
    """The exit status and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on standard output."""
        return json.loads(self.out)


def invoke(*args: str) -> Done:
    """Run a command in this process, through the same door as the program."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(args)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return Done(code, out.getvalue(), err.getvalue())


def environment(home: Path, **more: str) -> dict[str, str]:
    """This process's, without what could lead elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PLIANT_", "XDG_"))}
    return {**kept, "PLIANT_HOME": str(home), "TZ": "UTC", **more}


def real(env: Mapping[str, str], *args: str) -> Done:
    """Run the installed program to its end."""
    done = subprocess.run([PLIANT, *args], env=dict(env), capture_output=True, text=True, timeout=60, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def free_port() -> int:
    """Return a free port outside of the range that the system hands out, so that it can be used again later."""
    start = 20000 + os.getpid() * 7 % 10000
    for port in range(start, start + 2000):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition; the test fails if it does not come."""
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {SOON_S} s"
        _TICK.wait(0.01)


@dataclass(frozen=True)
class Running:
    """A coordinator that is up, with what it said when it was ready."""

    process: subprocess.Popen[str]
    home: Path
    ready: dict[str, Any]
    log: Path

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    @property
    def token_file(self) -> Path:
        return self.home / "token"

    def env(self, **more: str) -> dict[str, str]:
        return environment(self.home, PLIANT_COORDINATOR=self.url, **more)

    def client(self) -> Client:
        return Client([self.url], read_token(self.token_file))


@contextmanager
def coordinator(home: Path, *args: str) -> Iterator[Running]:
    """Start one on a free port and end it when the block ends, if it has not ended yet."""
    home.mkdir(mode=0o700, exist_ok=True)
    log = home / f"log-{len(list(home.glob('log-*')))}"
    options = args if "--store" in args else ("--store", "memory:", *args)
    listen = () if "--listen" in args else ("--listen", "127.0.0.1:0")
    command = [PLIANT, "coordinator", *listen, "--json", *options]
    with (
        log.open("w") as err,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, env=environment(home)) as process,
    ):
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            assert first, log.read_text()
            yield Running(process, home, json.loads(first), log)
        finally:
            if process.poll() is None:
                process.kill()
