"""Walks through a page as a newcomer would: terminals, what is typed into them, and what they show.

A fence `console NAME` is what happens in terminal NAME. A line that begins with `$ ` is typed, once the program before
it has ended; every other line is printed, by it or by a program that is still running there. `...` stands for any lines
that the page leaves out. `^C` is typed too, `Killed` is what the shell says of a program that was, and `$?` is the exit
status of the program before.
"""

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from tidy.files import ROOT
from unit.cli.program import free_port

BLOCK = re.compile(r"^```console (\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
LEFT_OUT = "..."
END_S = 2.0
PATIENCE_S = 120.0  # for a line; workers import torch meanwhile, on a machine that may be busy
# What differs from one walk to the next, and nothing else does.
PLACEHOLDERS = {
    r" {2,}": " ",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "DATE TIME",
    r"^(\[pliant\] )?\d\d:\d\d:\d\d ": r"\1TIME ",
    r"logs in \S+": "logs in FOLDER",
    r"after (\d+ min )?\d+ s": "after DURATION",
    r"(?<= waiting )\d+ (?:s|min)": "AGE",
    r"\(process \d+\)": "(process PID)",
    r"\([0-9a-f]{8}, ": "(STORE, ",
    r"\bToken [0-9a-f]{12} ": "Token ID ",
    r"\bvm-g?\d+\.\d+\b": "MEMBER",  # which of two is first
    r"(?<= vm )\d+ (?:\d+\.\d\d|-) (?:\d+ MiB|-)": "PID USE",
    r"\bgeneration \d+": "generation N",
    r"\bstep +\d+": "step N",
    r"\bsince \d\d:\d\d": "since HH:MM",
    r"(, |after )epoch \d+": r"\1epoch N",
    r"\bloss \d\.\d+": "loss L",
    r"^revision \d+": "revision N",
    r"\d+ samples in \d+ committed": "N samples in N committed",
}
# Shown only where a start takes longer than some seconds, as on a machine that is busy.
REMINDER = re.compile(r"\[pliant\] \d\d:\d\d:\d\d (still )?(starting|waiting): ")
# Numbers that stand for one thing in all that follows. Who notices a death first decides how many generations it takes.
GENERATION = re.compile(r"\bgeneration (\d+)")
PROCESS = (re.compile(r"\(process (\d+)\)"), re.compile(r"^vm-\S+ +\w+ +[\d-]+ +vm +(\d+) "))


def blocks(page: str) -> Iterator[tuple[str, list[str]]]:
    """Each terminal's name with what it shows, in the order of the page."""
    for name, text in BLOCK.findall(page):
        yield name, text.splitlines()


def general(line: str) -> str:
    """A line with what may differ replaced."""
    for pattern, word in PLACEHOLDERS.items():
        line = re.sub(pattern, word, line)
    return line.rstrip()


def _bound(known: dict[str, str], pattern: re.Pattern[str], shown: str, expected: str) -> bool:
    """Return whether what the page calls by a number is the same as before, and nothing else has that number."""
    for called, found in zip(pattern.findall(expected), pattern.findall(shown), strict=True):
        if called not in known and found not in known.values():
            known[called] = found
        if known.get(called) != found:
            return False
    return True


class Terminal:
    """One terminal, with at most one program running in it."""

    def __init__(self, env: dict[str, str], cwd: Path) -> None:
        self._env = env
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: SimpleQueue[str | None] = SimpleQueue()  # None: it has ended
        self.shown: list[str] = []
        self.status = 0  # of the last program that has ended

    def type(self, words: list[str]) -> None:
        """Start a program, after the one before it has ended."""
        self.end()
        self.shown.append(f"$ {' '.join(words)}")
        screen, theirs = pty.openpty()
        self._process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, env=self._env, cwd=self._cwd, start_new_session=True
        )
        os.close(theirs)
        self._lines = SimpleQueue()
        threading.Thread(target=self._read, args=(screen, self._lines), daemon=True).start()

    def _read(self, screen: int, lines: SimpleQueue[str | None]) -> None:
        """Read all the time: a program that cannot write stands still."""
        with os.fdopen(screen, "rb", buffering=0) as file:
            unread = b""
            while True:
                try:
                    data = file.read(65536)
                except OSError:  # every writer has gone
                    data = b""
                if not data:
                    lines.put(None)
                    return
                *whole, unread = (unread + data).split(b"\n")
                for line in whole:
                    text = ESCAPES.sub("", line.decode("utf-8", "replace").rstrip("\r"))
                    lines.put(text.rpartition("\r")[2])  # a bar is drawn over what it was before

    def line(self) -> str | None:
        """The next line that is shown; None if the program has ended."""
        try:
            line = self._lines.get(timeout=PATIENCE_S)
        except Empty:
            raise AssertionError(f"nothing more is shown after {self.shown[-10:]}") from None
        if line is None:
            self._lines.put(None)
        else:
            self.shown.append(line)
        return line

    def let_end(self) -> None:
        """Give a program that is about to end the time for it; one that runs on goes on."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)

    def interrupt(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Wait for the program; it must have nothing more to say."""
        if self._process is not None:
            more = self.line()
            assert more is None, f"more was printed than the page shows: {more}"
            self.status = self._process.wait(20)
            self._process = None
        return self.status

    def kill(self) -> None:
        """Clean up after a test that failed half-way."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Walk:
    """A newcomer in front of the terminals. The machine is called vm, and what the page calls 7711 is any free port."""

    def __init__(self, home: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PLIANT_", "XDG_", "PET_"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._address = f"127.0.0.1:{free_port()}"
        own = {"HOME": str(home), "PATH": path, "TERM": "xterm", "COLUMNS": "120", "TZ": "UTC", "PLIANT_AGENT": "vm"}
        self._env = {**kept, **own}
        self._clone = home / "clone"  # what scripts write is not to be found in the real one
        self._clone.mkdir()
        (self._clone / "examples").symlink_to(ROOT / "examples")
        self.terminals: dict[str, Terminal] = {}
        self._pids: dict[str, str] = {}  # by what the page calls them
        self._generations: dict[str, str] = {}

    def by_hand(self) -> None:
        """Call if the page starts a coordinator itself."""
        self._env["PLIANT_COORDINATOR"] = f"http://{self._address}"

    def see(self, name: str, lines: list[str]) -> None:
        """Do what a block says, and compare what it shows."""
        terminal = self.terminals.setdefault(name, Terminal(self._env, self._clone))
        left_out = False
        for expected in lines:
            if expected.startswith("$ "):
                terminal.type(self._words(expected.removeprefix("$ "), terminal))
            elif expected == "^C":
                for other in self.terminals.values():
                    other.let_end()  # a reader presses Ctrl-C after the commands elsewhere are through
                terminal.interrupt()
            elif expected == "Killed":
                assert terminal.end() == -signal.SIGKILL
            elif expected == LEFT_OUT:
                left_out = True
            else:
                self._find(terminal, expected, left_out)
                left_out = False

    def _find(self, terminal: Terminal, expected: str, left_out: bool) -> None:
        while True:
            shown = terminal.line()
            assert shown is not None, f"it ended, and had not shown: {expected}"
            if self._is(shown, expected):
                return
            assert left_out or REMINDER.match(shown), f"shown is {shown!r}, and not {expected!r}"

    def _is(self, shown: str, expected: str) -> bool:
        shown = shown.replace(self._address, "127.0.0.1:7711").replace(f"{self._env['HOME']}/", "~/")
        if general(shown) != general(expected):
            return False
        process = all(_bound(self._pids, pattern, shown, expected) for pattern in PROCESS)
        return process and _bound(self._generations, GENERATION, shown, expected)

    def _words(self, command: str, terminal: Terminal) -> list[str]:
        status = terminal.end() if "$?" in command else 0
        if command.startswith("pliant run"):
            self._generations = {}
        typed = command.replace("$?", str(status)).replace("127.0.0.1:7711", self._address)
        words = [self._pids.get(word, word) for word in typed.replace("~/", f"{self._env['HOME']}/").split()]
        return [*words, "--listen", self._address] if command == "pliant coordinator" else words

    def close(self) -> None:
        for terminal in self.terminals.values():
            terminal.kill()

    def story(self) -> str:
        """Return all that was shown, to find out what went wrong."""
        return "\n\n".join(f"--- {name}\n" + "\n".join(each.shown) for name, each in self.terminals.items())
