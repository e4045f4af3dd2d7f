"""Real coordinators for tests: started, stopped, killed, and everything they wrote looked through for secrets.

    with start("sqlite:" + str(path), home=tmp_path) as running:
        running.client().jobs()
        running.kill()              # -9; `start` with the same store and home brings it back

`WRITTEN` keeps everything that a coordinator sends, and every secret; `tests/e2e/conftest.py` looks
at the end of the session whether one is in the other.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2

from pliant.client import Client
from pliant.credentials import NO_TLS_FILES, TlsFiles, Token, parse_token, read_token
from pliant.tls import client_context

SERVE = Path(__file__).with_name("serve.py")
PATIENCE_S = 90.0  # for what takes a moment; long, because the machines we run on are shared
LOOK_S = 0.01

_numbers = itertools.count(1)


def wait_for(true: Callable[[], object], what: str, patience_s: float = PATIENCE_S, *, look_s: float = LOOK_S) -> None:
    """Return as soon as `true()` is; fail after `patience_s`. `look_s` is the pause between two looks."""
    until = time.monotonic() + patience_s
    pause = threading.Event()
    while not true():
        assert time.monotonic() < until, f"waited {patience_s:g} s for {what}"
        pause.wait(look_s)


@dataclass
class Written:
    """Everything that was written where others may read it, and every secret that must not be there."""

    secrets: set[str] = field(default_factory=set)
    texts: dict[bytes, str] = field(default_factory=dict)

    def secret(self, token: Token) -> Token:
        self.secrets.add(token.secret)
        return token

    def note(self, where: str, data: bytes) -> None:
        self.texts.setdefault(data, where)

    def leaks(self) -> list[str]:
        """Return where a secret stands; empty if nowhere."""
        needles = [(secret[:6], secret.encode()) for secret in sorted(self.secrets)]
        return [f"a secret {hint}... in {w}" for data, w in self.texts.items() for hint, s in needles if s in data]


WRITTEN = Written()


@dataclass(frozen=True)
class Options:
    """The arguments of `serve.py`. The limits are the coordinator's own, but shorter where a test waits for them."""

    store: str = "memory:"
    home: str = ""
    port: int = 0
    lease_ttl_s: float = 10.0
    hosts: tuple[str, ...] = ()
    head_time_s: float = 10.0
    body_time_s: float = 10.0
    stream_quiet_s: float = 15.0
    stall_s: float = 30.0
    last_s: float = 1.0
    connections_max: int | None = None
    tls: tuple[str, str, str | None] | None = None  # certificate, key, CA of clients
    protocol_oldest: int | None = None
    unknown_events: bool = False
    submissions: tuple[str, ...] = ()  # images of submissions


class Running:
    """A coordinator's process. `stop` asks it to end, `kill` does not ask; both may be called twice."""

    def __init__(
        self, process: subprocess.Popen[bytes], url: str, home: Path, log_file: Path, tls: TlsFiles = NO_TLS_FILES
    ) -> None:
        self.process = process
        self.tls = tls
        self.url = url
        self.home = home
        self.log_file = log_file
        self.token = WRITTEN.secret(read_token(home / "token"))
        self._opened: list[Client | httpx2.Client] = []
        WRITTEN.note("the command line", Path(f"/proc/{self.pid}/cmdline").read_bytes())
        WRITTEN.note("the environment", Path(f"/proc/{self.pid}/environ").read_bytes())

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop() if kind is None else self.kill()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def client(self, token: Token | None = None, *, patience_s: float = 10.0) -> Client:
        """A client of ours, with the coordinator's own token unless another one is given."""
        client = Client([self.url], token or self.token, patience_s=patience_s, tls=self.tls)
        self._opened.append(client)
        return client

    def http(self, token: Token | None = None) -> httpx2.Client:
        """A plain client of HTTP, without a credential unless one is given; what it is answered is remembered."""
        headers = {} if token is None else {"authorization": f"Bearer {token.text}"}
        hooks = {"response": [_remember]}
        verify = client_context(self.tls) if self.tls.ca_file is not None else True
        client = httpx2.Client(
            base_url=self.url, headers=headers, trust_env=False, timeout=20.0, event_hooks=hooks, verify=verify
        )
        self._opened.append(client)
        return client

    @functools.cached_property
    def admin(self) -> httpx2.Client:
        """The same with the coordinator's own token, made once."""
        return self.http(self.token)

    def open_files(self) -> int:
        """Return how many file descriptors it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208  # links to what may be gone already

    def stop(self) -> int:
        """SIGTERM, and wait for a clean end; its exit status."""
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
        return self._ended()

    def kill(self) -> None:
        """SIGKILL: no goodbye, nothing flushed."""
        if self.alive:
            self.process.kill()
        self._ended()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """SIGSTOP now, SIGCONT after: the process does not notice that it was away."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            wait_for(lambda: _state(self.pid) == "T", "the coordinator to be paused")
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def _ended(self) -> int:
        for client in self._opened:
            client.close()
        self._opened.clear()
        try:
            status = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the coordinator did not stop; its log:\n{self.log}") from None
        assert self.process.stdout is not None
        if not self.process.stdout.closed:
            WRITTEN.note("standard output", self.process.stdout.read())
            self.process.stdout.close()
            self._note_files()
        return status

    def _note_files(self) -> None:
        for path in self.home.rglob("*"):
            if path.is_file() and "token" not in path.name:
                WRITTEN.note(path.name, path.read_bytes())


def start(
    store: str = "memory:",
    *,
    home: Path,
    port: int = 0,
    lease_ttl_s: float = 10.0,
    program: Sequence[str] = (sys.executable, str(SERVE)),
    trusted: TlsFiles = NO_TLS_FILES,
    **limits: Any,
) -> Running:
    """A coordinator that answers. `limits` are further fields of `Options`; `program` takes them as its argument.

    `trusted` are the files of its clients if it is one with TLS.
    """
    home.mkdir(parents=True, exist_ok=True)
    options = Options(store, str(home), port, lease_ttl_s, **limits)
    log_file = home / f"log-{next(_numbers)}.txt"
    with log_file.open("wb") as log:
        argument = json.dumps(dataclasses.asdict(options))
        process = subprocess.Popen([*program, argument], stdout=subprocess.PIPE, stderr=log, start_new_session=True)
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    line = process.stdout.readline() if ready else b""
    if not line:
        process.kill()
        process.wait()
        process.stdout.close()
        raise AssertionError(f"the coordinator did not start; its log:\n{log_file.read_text()}")
    return Running(process, json.loads(line)["url"], home, log_file, trusted)


def token_of(text: str) -> Token:
    """A token that a coordinator has just made, remembered as a secret."""
    token = parse_token(text)
    assert token is not None
    return WRITTEN.secret(token)


def _remember(response: httpx2.Response) -> None:
    if "event-stream" in response.headers.get("content-type", ""):
        return
    made = response.request.url.path == "/v1/tokens" and response.request.method == "POST" and response.is_success
    if not made:  # the one answer that tells a secret, to whom it belongs
        where = f"an answer to {response.request.method} {response.request.url.path}"
        WRITTEN.note(where, str(response.headers).encode() + response.read())


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
