"""The coordinator of a sandbox on this machine, kept by the same class as an agent's own coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pliant.agent.coordinator.child import HOST, NAME, CoordinatorChild
from pliant.agent.process.ports import free_port

LOOPBACK = HOST

OnLine = Callable[[bytes], None]


class ProcessKeeper(Protocol):
    """Starts named processes, which end with it however it ends. It reports each end to its owner."""

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str], line: OnLine) -> None:
        """Start a program under a name; `line` receives every line it writes, in a thread of its own."""

    def terminate(self, name: str) -> None:
        """Send SIGTERM."""

    def kill(self, name: str) -> None:
        """Send SIGKILL to everything in its process group."""


class _CoordinatorLauncher:
    gone = False  # the sandbox does not stop its coordinator then

    def __init__(self, keeps: ProcessKeeper) -> None:
        self._keeps = keeps

    def start(self, argv: Sequence[str], env: Mapping[str, str], line: OnLine) -> None:
        self._keeps.start(NAME, argv, env, line)

    def terminate(self) -> None:
        self._keeps.terminate(NAME)

    def kill(self) -> None:
        self._keeps.kill(NAME)


class SandboxCoordinator:
    """Call `start`, `ended` after every end of its process, and `stop`."""

    def __init__(
        self,
        keeps: ProcessKeeper,
        program: Sequence[str],
        home: Path,
        host: str,
        lease_ttl_s: float,
        say: Callable[[str], None],
    ) -> None:
        self.say = say
        self.token_file = home / "token"
        self.pid = 0
        options = ("--lease-ttl-s", f"{lease_ttl_s:g}")
        self._child = CoordinatorChild(
            _CoordinatorLauncher(keeps), home, program, self, (host, free_port(host)), options
        )
        self.start, self.ended, self.stop = self._child.start, self._child.ended, self._child.stop

    @property
    def url(self) -> str:
        return self._child.url

    def ready(self, url: str, pid: int) -> None:  # noqa: ARG002  # the URL stays the same
        self.pid = pid
