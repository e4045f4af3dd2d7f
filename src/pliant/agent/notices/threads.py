"""The threads that look for notices, and the names that select their sources."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType

from pliant.agent.notices.base import Notice, Trouble, Watcher
from pliant.agent.notices.clouds import AwsWatcher, AzureWatcher, GcpWatcher, Server
from pliant.agent.notices.local import CommandWatcher, FileWatcher
from pliant.errors import BadInput

PAUSE_S = 5.0  # after a look that failed, at least
FAILURES = 3  # failed looks in a row before the failure is reported, once a look has succeeded

Make = Callable[[str, Server | None], Sequence[Watcher]]


def _no_argument(name: str, argument: str) -> None:
    if argument:
        raise BadInput(f"{name} takes no argument, got {argument!r}.")


def _aws(argument: str, server: Server | None) -> Sequence[Watcher]:
    _no_argument("aws", argument)
    return [AwsWatcher(server)]


def _gcp(argument: str, server: Server | None) -> Sequence[Watcher]:
    _no_argument("gcp", argument)
    return [GcpWatcher(key, server) for key in ("preempted", "maintenance-event")]


def _azure(argument: str, server: Server | None) -> Sequence[Watcher]:
    _no_argument("azure", argument)
    return [AzureWatcher(server)]


def _file(argument: str, _: Server | None) -> Sequence[Watcher]:
    return [FileWatcher(argument)]


def _command(argument: str, _: Server | None) -> Sequence[Watcher]:
    return [CommandWatcher(argument)]


KINDS: Mapping[str, Make] = MappingProxyType(
    {"aws": _aws, "gcp": _gcp, "azure": _azure, "file": _file, "command": _command}
)
"""Factories by the word before the colon; they get the text after it and the metadata server."""


def watchers(names: Iterable[str], server: Server | None = None) -> list[Watcher]:
    """Return the watchers for names: `aws`, `gcp`, `azure`, `file:PATH`, `command:CMD`. BadInput for any other."""
    found: list[Watcher] = []
    for name in names:
        kind, _, argument = name.partition(":")
        if kind not in KINDS:
            raise BadInput(f"{name!r} is not a source of notices. Use aws, gcp, azure, file:PATH or command:CMD.")
        found += KINDS[kind](argument, server)
    return found


class Notices:
    """Look for notices from `start` on, with one thread for each source. `on_notice` is called once, by one of them.

    `complain` receives one message when a source cannot be read, until it can be read again; retries never stop.
    `server` replaces the metadata servers in tests.
    """

    def __init__(
        self,
        names: Iterable[str],
        on_notice: Callable[[Notice], None],
        complain: Callable[[str], None],
        *,
        server: Server | None = None,
        pause_s: float | None = None,
    ) -> None:
        self._watchers = watchers(names, server)
        self._on_notice = on_notice
        self._complain = complain
        self._pause_s = pause_s  # None: the pause of each watcher
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._remarks: set[str] = set()

    def __enter__(self) -> Notices:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        for watcher in self._watchers:
            threading.Thread(target=self._listen, args=(watcher,), name=f"notice {watcher.name}", daemon=True).start()

    def close(self) -> None:
        """Stop. A request that is under way is not waited for."""
        with self._lock:
            self._over.set()

    def _listen(self, watcher: Watcher) -> None:
        failures, looked, told = 0, False, False
        while not self._over.is_set():
            pause_s = watcher.pause_s
            try:
                notice = watcher.look(self._remark_once)
            except Trouble as trouble:
                failures += 1
                pause_s = max(pause_s, PAUSE_S)
                if not told and (not looked or failures >= FAILURES):
                    told = True
                    self._remark(f"Notices from {watcher.name} cannot be read: {trouble} Retrying.")
            else:
                if told:
                    self._remark(f"Notices from {watcher.name} can be read again.")
                failures, looked, told = 0, True, False
                if notice is not None:
                    self._tell(notice)
                    return
            self._over.wait(pause_s if self._pause_s is None else self._pause_s)

    def _tell(self, notice: Notice) -> None:
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
        self._on_notice(notice)

    def _remark_once(self, text: str) -> None:
        if text not in self._remarks:
            self._remarks.add(text)
            self._remark(text)

    def _remark(self, text: str) -> None:
        if not self._over.is_set():
            self._complain(text)
