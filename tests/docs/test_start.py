"""Walks through docs/start.md as a newcomer would: three terminals, and what they show compared with the page.

A fence `console NAME` is what happens in terminal NAME. A line that begins with `$ ` is typed, once the program before
it has ended; every other line is printed, by it or by a program that is still running there. `^C` is typed too, and
`Killed` is what the shell says of a program that was.
"""

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidy.files import ROOT
from unit.cli.program import free_port

BLOCK = re.compile(r"^```console (\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
# What differs from one walk to the next, and nothing else does.
PLACEHOLDERS = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "DATE TIME",
    r"^\d\d:\d\d:\d\d ": "TIME ",
    r"\(process \d+\)": "(process PID)",
    r"\([0-9a-f]{8}, ": "(STORE, ",
}


def blocks(page: str) -> Iterator[tuple[str, list[str]]]:
    """Each terminal's name with what it shows, in the order of the page."""
    for name, text in BLOCK.findall(page):
        yield name, text.splitlines()


def general(line: str) -> str:
    """A line with what may differ replaced."""
    for pattern, word in PLACEHOLDERS.items():
        line = re.sub(pattern, word, line)
    return line.rstrip()


class Terminal:
    """One terminal, with at most one program running in it."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self._screen = -1
        self._unread = b""

    def type(self, words: list[str]) -> None:
        """Start a program, after the one before it has ended."""
        self.end()
        self._screen, theirs = pty.openpty()
        self._process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, env=self._env, start_new_session=True
        )
        os.close(theirs)

    def line(self) -> str:
        """The next line that is shown; empty if the program has ended."""
        while b"\n" not in self._unread:
            try:
                data = os.read(self._screen, 65536)
            except OSError:  # everybody who could write has gone
                data = b""
            if not data:
                return ""
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return ESCAPES.sub("", line.decode().rstrip("\r"))

    def interrupt(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Wait for the program; it must have nothing more to say."""
        if self._process is None:
            return 0
        assert self.line() == "", "more was printed than the page shows"
        status = self._process.wait(20)
        self._close()
        return status

    def kill(self) -> None:
        """Clean up after a test that failed half-way."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close()

    def _close(self) -> None:
        os.close(self._screen)
        self._process = None


class Walk:
    """A newcomer in front of the terminals. What the page calls 7711 is a port that was free."""

    def __init__(self, home: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PLIANT_", "XDG_"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._address = f"127.0.0.1:{free_port()}"
        own = {"HOME": str(home), "PATH": path, "TERM": "xterm", "COLUMNS": "120", "TZ": "UTC"}
        self.env = {**kept, **own, "PLIANT_COORDINATOR": f"http://{self._address}"}
        self.terminals: dict[str, Terminal] = {}
        self._pids: dict[str, str] = {}  # by what the page calls them

    def see(self, name: str, lines: list[str]) -> None:
        """Do what a block says, and compare what it shows."""
        terminal = self.terminals.setdefault(name, Terminal(self.env))
        for expected in lines:
            if expected.startswith("$ "):
                terminal.type(self._words(expected.removeprefix("$ ")))
            elif expected == "^C":
                terminal.interrupt()
            elif expected == "Killed":
                assert terminal.end() == -signal.SIGKILL
            else:
                shown = terminal.line()
                self._learn(expected, shown)
                assert general(shown.replace(self._address, "127.0.0.1:7711")) == general(expected)

    def _words(self, command: str) -> list[str]:
        words = [self._pids.get(word, word) for word in command.split()]
        return [*words, "--listen", self._address] if command == "pliant coordinator" else words

    def _learn(self, expected: str, shown: str) -> None:
        """A process's number is known when it is said."""
        found, called = (re.search(r"\(process (\d+)\)", line) for line in (shown, expected))
        if found and called:
            self._pids[called[1]] = found[1]


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    made = Walk(tmp_path)
    yield made
    for terminal in made.terminals.values():
        terminal.kill()


def test_the_page_shows_exactly_what_is_printed(walk: Walk) -> None:
    page = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    told = list(blocks(page))
    assert len(told) >= 10
    for name, lines in told:
        walk.see(name, lines)
    assert {name: terminal.end() for name, terminal in walk.terminals.items()} == {"first": 0, "second": 0, "third": 0}


def test_a_page_that_shows_something_else_is_found(walk: Walk) -> None:
    with pytest.raises(AssertionError):
        walk.see("first", ["$ echo one", "two"])
    with pytest.raises(AssertionError, match="more was printed"):
        walk.see("second", ["$ echo one", "$ echo two"])


def test_only_times_and_numbers_may_differ() -> None:
    line = "2026-11-15 12:00:05      1  job demo created: 2 to 4 workers, 4 wanted"
    assert general(line) == general(line.replace("12:00:05", "23:59:59"))
    assert general(line) != general(line.replace("      1 ", "      2 "))
    assert general(line) != general(line.replace("2 to 4", "2 to 5"))
    assert general("Store: x (25c8adb4, 1 job)") == general("Store: x (00000000, 1 job)")
    assert general("Store: x (25c8adb4, 1 job)") != general("Store: x (25c8adb4, 0 jobs)")
    assert list(blocks("```console a\n$ x\ny\n```\n```\nz\n```\n")) == [("a", ["$ x", "y"])]
