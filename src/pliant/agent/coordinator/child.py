"""A coordinator as the agent's own child: started on a job's store, started again when it ends, stopped at the end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Protocol

from pliant.agent.job_dir import Folder
from pliant.agent.logs.capture import Sink
from pliant.agent.process.client import Processes
from pliant.agent.process.ports import free_port
from pliant.core.job.launches import describe_exit
from pliant.errors import PliantError

NAME = "coordinator"
HOST = "127.0.0.1"
PORT_TRIES = 5
START_S = 30.0
STOP_S = 10.0
BACKOFF_FIRST_S = 0.5  # the first time at once
BACKOFF_MAX_S = 10.0
STEADY_S = 30.0  # one that lived so long was sound: the next end counts as the first


class Told(Protocol):
    """Whom a keeper tells, from several threads."""

    def say(self, text: str) -> None:
        """Something for people."""

    def ready(self, url: str, pid: int) -> None:
        """It answers there now."""


class Keeper:
    """`start`, tell it of every end with `ended`, and `stop`."""

    def __init__(
        self,
        processes: Processes,
        folder: Folder,
        program: Sequence[str],
        told: Told,
        listen: tuple[str, int] | None = None,
    ) -> None:
        """`listen` is where it must be found; None: on any free port, by this machine alone."""
        self._listen = listen
        self._processes = processes
        self._folder = folder
        self._program = program
        self._told = told
        self._port = 0
        self._news: SimpleQueue[dict[str, object] | int] = SimpleQueue()  # it is ready, or its exit status
        self._ready = False
        self._stopping = False
        self._gone = threading.Event()
        self._failures = 0
        self._began = 0.0
        self._last = ""

    @property
    def url(self) -> str:
        host = self._listen[0] if self._listen is not None else HOST
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"

    def start(self) -> None:
        """Return when it answers. PliantError says why it does not."""
        for _ in range(PORT_TRIES):
            self._port = self._listen[1] if self._listen is not None else free_port()
            self._spawn()
            try:
                news = self._news.get(timeout=START_S)
            except Empty:
                raise PliantError(f"The coordinator did not start in {START_S:g} s. {self._see()}") from None
            if isinstance(news, dict):
                self._ready = True
                return
            if "Cannot listen" not in self._last or self._listen is not None:
                break  # else somebody was quicker to take the port: there are others
        raise PliantError(f"The coordinator does not start: {self._last} {self._see()}")

    def ended(self, code: int) -> None:
        """Call when its process has ended. It is started again, on the same port: members and agents know no other."""
        self._gone.set()
        if self._stopping:
            return
        if not self._ready:
            self._news.put(code)
            return
        self._failures = 1 if time.monotonic() - self._began > STEADY_S else self._failures + 1
        pause_s = 0.0 if self._failures == 1 else min(BACKOFF_FIRST_S * 2 ** (self._failures - 2), BACKOFF_MAX_S)
        when = f"in {pause_s:g} s" if pause_s else "now"
        self._told.say(
            f"the coordinator ended with {describe_exit(code)}; training goes on, and it is started again {when}"
        )
        timer = threading.Timer(pause_s, self._again)
        timer.daemon = True
        timer.start()

    def stop(self) -> None:
        """Let it finish what it was asked; call when nobody needs it any more."""
        self._stopping = True
        if self._processes.gone:
            return
        self._processes.terminate(NAME)
        if not self._gone.wait(STOP_S):
            self._processes.kill(NAME)

    def _again(self) -> None:
        if not self._stopping:
            try:
                self._spawn()
            except PliantError:
                return  # the warden is gone, and the agent is told of that itself

    def _spawn(self) -> None:
        self._gone.clear()
        self._began = time.monotonic()
        where = self.url.removeprefix("http://")
        expose = [] if self._listen is None else ["--expose"]  # who named an address asked for it to be reached there
        argv = [*self._program, "coordinator", "--listen", where, *expose, "--json"]
        sink = Sink(self._folder.logs / "coordinator.log", self._heard, self._told.say)
        self._processes.start(NAME, argv, {"PLIANT_HOME": str(self._folder.path.absolute())}, sink)

    def _heard(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        if text.startswith('{"url":'):
            ready: dict[str, object] = json.loads(text)
            try:
                self._told.ready(self.url, int(str(ready["pid"])))
            except PliantError as error:
                self._told.say(error.why)  # whoever looks for it has to be told where it is
            if self._ready:
                self._told.say("the coordinator answers again")
            else:
                self._news.put(ready)
        else:
            self._last = text

    def _see(self) -> str:
        return f"Its log is {self._folder.logs / 'coordinator.log'}."


class _Quiet:
    def say(self, text: str) -> None:
        """Its log has it."""

    def ready(self, url: str, pid: int) -> None:
        """Nobody else is to find it."""


@contextmanager
def kept(folder: Folder, program: Sequence[str]) -> Iterator[str]:
    """A coordinator on a job's store for as long as a block takes: its URL. Hold the folder's lock meanwhile."""
    keepers: list[Keeper] = []
    with Processes(lambda _, code: keepers[0].ended(code), lambda: None) as processes:
        keeper = Keeper(processes, folder, program, _Quiet())
        keepers.append(keeper)
        keeper.start()
        yield keeper.url
        keeper.stop()
