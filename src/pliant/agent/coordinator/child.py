"""A coordinator as a child process: started on a store, restarted whenever it ends, stopped at the end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from pliant.agent.job_dir import JobDir
from pliant.agent.logs.capture import OutputSink
from pliant.agent.process.client import Processes
from pliant.agent.process.ports import free_port
from pliant.core.job.launches import describe_exit
from pliant.credentials import NO_TLS_FILES, TlsFiles
from pliant.errors import PliantError

NAME = "coordinator"
HOST = "127.0.0.1"
PORT_TRIES = 5
START_S = 30.0
STOP_S = 10.0
BACKOFF_FIRST_S = 0.5  # after the second end; the first restart is immediate
BACKOFF_MAX_S = 10.0
STEADY_S = 30.0  # after a run of this length, the next end counts as the first


class Launcher(Protocol):
    """Starts and ends the one child process; `ended` of `CoordinatorChild` is called when it ended."""

    @property
    def gone(self) -> bool:
        """True if all its processes have ended with it."""
        ...

    def start(self, argv: Sequence[str], env: Mapping[str, str], line: Callable[[bytes], None]) -> None:
        """Start it; `line` receives every line it writes, in a thread of its own."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL to its process group."""


class ChildOwner(Protocol):
    """Receives the messages of a `CoordinatorChild`, from several threads."""

    def say(self, text: str) -> None:
        """Show a message to the user."""

    def ready(self, url: str, pid: int) -> None:
        """The coordinator answers at this URL now."""


class ProcessesLauncher:
    """Starts the coordinator through an agent's `Processes`, with its output in a log file."""

    def __init__(self, processes: Processes, log: Path, say: Callable[[str], None]) -> None:
        self._processes = processes
        self._log = log
        self._say = say

    @property
    def gone(self) -> bool:
        return self._processes.gone

    def start(self, argv: Sequence[str], env: Mapping[str, str], line: Callable[[bytes], None]) -> None:
        self._processes.start(NAME, argv, env, OutputSink(self._log, line, self._say))

    def terminate(self) -> None:
        self._processes.terminate(NAME)

    def kill(self) -> None:
        self._processes.kill(NAME)


class CoordinatorChild:
    """Call `start`, then `ended` after every end of its process, and `stop` at the end.

    `home` is the folder of its store and token. `listen` is its address, with port 0 for a free one; None means a free
    port of this machine's loopback address. With a CA in `tls` it serves https, with the certificate in `tls`.
    """

    def __init__(
        self,
        launcher: Launcher,
        home: Path,
        program: Sequence[str],
        owner: ChildOwner,
        listen: tuple[str, int] | None = None,
        options: Sequence[str] = (),
        log: Path | None = None,
        tls: TlsFiles = NO_TLS_FILES,
    ) -> None:
        self._listen = listen
        self._tls = tls
        self._launcher = launcher
        self._home = home
        self._program = program
        self._owner = owner
        self._options = options
        self._log = log
        self._port = 0
        self._news: SimpleQueue[dict[str, object] | int] = SimpleQueue()  # the ready message, or the exit status
        self._ready = False
        self._stopping = False
        self._gone = threading.Event()
        self._failures = 0
        self._began = 0.0
        self._last_line = ""

    @property
    def _has_fixed_port(self) -> bool:
        return self._listen is not None and self._listen[1] != 0

    @property
    def url(self) -> str:
        return f"{'http' if self._tls.ca_file is None else 'https'}://{self._address}"

    @property
    def _address(self) -> str:
        host = self._listen[0] if self._listen is not None else HOST
        return f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"

    def start(self) -> None:
        """Start it and return when it answers. Raises PliantError with the reason if it does not."""
        for _ in range(PORT_TRIES):
            self._port = self._listen[1] if self._has_fixed_port and self._listen is not None else free_port()
            self._spawn()
            try:
                news = self._news.get(timeout=START_S)
            except Empty:
                raise PliantError(f"The coordinator did not start in {START_S:g} s. {self._log_hint()}") from None
            if isinstance(news, dict):
                self._ready = True
                return
            if "Cannot listen" not in self._last_line or self._has_fixed_port:
                break  # otherwise another process took the port; try the next one
        raise PliantError(f"The coordinator does not start: {self._last_line} {self._log_hint()}")

    def ended(self, code: int) -> None:
        """Start it again after its process ended, on the same port, which members and agents have."""
        self._gone.set()
        if self._stopping:
            return
        if not self._ready:
            self._news.put(code)
            return
        self._failures = 1 if time.monotonic() - self._began > STEADY_S else self._failures + 1
        pause_s = 0.0 if self._failures == 1 else min(BACKOFF_FIRST_S * 2 ** (self._failures - 2), BACKOFF_MAX_S)
        when = f"in {pause_s:g} s" if pause_s else "now"
        self._owner.say(
            f"the coordinator ended with {describe_exit(code)}; training goes on, and it is started again {when}"
        )
        timer = threading.Timer(pause_s, self._restart)
        timer.daemon = True
        timer.start()

    def stop(self) -> None:
        """Stop it, once no agent or member needs it. It finishes the requests it has."""
        self._stopping = True
        if self._launcher.gone:
            return
        self._launcher.terminate()
        if not self._gone.wait(STOP_S):
            self._launcher.kill()

    def _restart(self) -> None:
        if not self._stopping:
            try:
                self._spawn()
            except PliantError:
                return  # the spawner is gone, which the agent learns by itself

    def _spawn(self) -> None:
        self._gone.clear()
        self._began = time.monotonic()
        keep = ["--keep-ended", "0"]  # its one job is deleted with its folder, by its owner
        options = [*self._exposure, *keep, *self._options]
        argv = [*self._program, "coordinator", "--listen", self._address, *options, "--json"]
        self._launcher.start(argv, {"PLIANT_HOME": str(self._home.absolute())}, self._read_line)

    @property
    def _exposure(self) -> list[str]:
        """The options about TLS. Without it, the plan of the agent has warned that nothing is encrypted."""
        expose = [] if self._listen is None or self._listen[0] == HOST else ["--expose"]
        if self._tls.ca_file is not None:
            return [*expose, "--tls-cert", str(self._tls.cert_file), "--tls-key", str(self._tls.key_file)]
        return [*expose, "--insecure"] if expose else []

    def _read_line(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        if text.startswith('{"url":'):
            ready: dict[str, object] = json.loads(text)
            try:
                self._owner.ready(self.url, int(str(ready["pid"])))
            except PliantError as error:
                self._owner.say(error.why)  # other commands cannot find the coordinator now
            if self._ready:
                self._owner.say("the coordinator answers again")
            else:
                self._news.put(ready)
        else:
            self._last_line = text

    def _log_hint(self) -> str:
        return f"Its log is {self._log}." if self._log is not None else ""


class _SilentOwner:
    def say(self, text: str) -> None:
        """Do nothing: the message is in the log of the coordinator."""

    def ready(self, url: str, pid: int) -> None:
        """Do nothing: no other process waits for it."""


def in_job_dir(
    processes: Processes,
    folder: JobDir,
    program: Sequence[str],
    owner: ChildOwner,
    listen: tuple[str, int] | None = None,
    tls: TlsFiles = NO_TLS_FILES,
    store: str | None = None,
) -> CoordinatorChild:
    """Return a coordinator on a job's own store, or on `store`, with its log among the job's."""
    log = folder.logs / "coordinator.log"
    launcher = ProcessesLauncher(processes, log, owner.say)
    options = () if store is None else ("--store", store)
    return CoordinatorChild(launcher, folder.path, program, owner, listen, options, log=log, tls=tls)


@contextmanager
def temporary_coordinator(folder: JobDir, program: Sequence[str]) -> Iterator[str]:
    """Run a coordinator on a job's store for a block; yields its URL. Hold the folder's lock meanwhile."""
    children: list[CoordinatorChild] = []
    with Processes(lambda _, code: children[0].ended(code), lambda: None) as processes:
        child = in_job_dir(processes, folder, program, _SilentOwner())
        children.append(child)
        child.start()
        yield child.url
        child.stop()
