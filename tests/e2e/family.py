"""Processes under a spawner, with their ends and their words gathered."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pliant.agent.logs.capture import OutputSink
from pliant.agent.process.client import Processes
from pliant.agent.process.script import FILE, MODULE, Script
from pliant.agent.process.template import WARMING

SOON_S = 60.0
_TICK = threading.Event()  # never set: between two looks others get their turn


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition; the test fails if it does not come. Imports take long on a busy machine."""
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {SOON_S} s"
        _TICK.wait(0.01)


class Family:
    """Use it as a context manager, as `Processes` is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ends: SimpleQueue[tuple[str, int]] = SimpleQueue()
        self.broken = threading.Event()
        self.words: dict[str, list[str]] = {}
        self.sinks: dict[str, OutputSink] = {}
        self.plainly: dict[str, str] = {}  # of those that ended: why it was not forked
        self.processes = Processes(self._ended, self.broken.set)

    def __enter__(self) -> "Family":
        return self

    def __exit__(self, *_: Any) -> None:
        self.processes.close()

    def _ended(self, name: str, code: int) -> None:
        self.plainly[name] = self.processes.plainly.get(name, "")
        self.ends.put((name, code))

    def sink(self, name: str) -> OutputSink:
        said = self.words[name] = []
        self.sinks[name] = OutputSink(
            self.folder / f"{name}.log", lambda line: said.append(line.decode()), lambda _: None
        )
        return self.sinks[name]

    def warm(self, *modules: str, **env: str) -> str:
        """Return how the template is, once that is known."""
        self.processes.warm(modules, env)
        until(lambda: self.processes.warmed != WARMING, "the template")
        assert self.processes.warmed is not None
        return self.processes.warmed

    def start(self, name: str, script: Script, **env: str) -> None:
        self.processes.start(name, script.argv(), {"PLIANT_MEMBER": name, **env}, self.sink(name))

    def fork(self, name: str, script: Script, **env: str) -> None:
        self.processes.fork(name, script, {"PLIANT_MEMBER": name, **env}, self.sink(name))

    def written(self, text: str, name: str = "script.py") -> Script:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return Script(FILE, str(path))

    def end(self) -> tuple[str, int]:
        return self.ends.get(timeout=SOON_S)

    def outcome(self, name: str) -> tuple[int, list[str]]:
        """The exit status of the one process that runs, and all it wrote."""
        ended, code = self.end()
        assert ended == name
        self.sinks[name].wait(SOON_S)
        return code, self.words[name]

    def says(self, name: str, count: int = 1) -> list[str]:
        until(lambda: len(self.words[name]) >= count, f"{count} lines of {name}")
        return self.words[name]

    def pid(self, name: str) -> int:
        until(lambda: name in self.processes.pids, f"the number of {name}")
        return self.processes.pids[name]


def as_module(script: Script) -> Script:
    return Script(MODULE, Path(script.name).stem, script.args)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
