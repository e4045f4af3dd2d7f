import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from pliant.agent.logs.capture import OutputSink
from pliant.agent.process.client import ORDER_MAX, Processes
from pliant.agent.process.spawner import CANNOT_START
from pliant.errors import BadInput, PliantError
from unit.cli.program import until

SOON_S = 60.0


class Family:
    """Processes, with their ends and their words gathered."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ends: SimpleQueue[tuple[str, int]] = SimpleQueue()
        self.broken = threading.Event()
        self.words: dict[str, list[str]] = {}
        self.processes = Processes(lambda name, code: self.ends.put((name, code)), self.broken.set)

    def start(self, name: str, text: str, **env: str) -> None:
        self.command(name, sys.executable, "-u", "-c", text, **env)

    def command(self, name: str, *argv: str, **env: str) -> None:
        said = self.words.setdefault(name, [])
        sink = OutputSink(self.folder / f"{name}.log", lambda line: said.append(line.decode()), lambda _: None)
        self.processes.start(name, argv, env, sink)

    def end(self) -> tuple[str, int]:
        return self.ends.get(timeout=SOON_S)

    def says(self, name: str, count: int = 1) -> list[str]:
        until(lambda: len(self.words[name]) >= count, f"{count} lines of {name}")
        return self.words[name]


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    made = Family(tmp_path)
    with made.processes:
        yield made


PAUSE = "import signal; print('up'); signal.pause()"


@pytest.mark.parametrize(
    ("text", "code"),
    [("", 0), ("raise SystemExit(3)", 3), ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11)],
)
def test_an_end_is_told_with_its_status(family: Family, text: str, code: int) -> None:
    family.start("a", text)
    assert family.end() == ("a", code)


def test_output_and_errors_come_in_one_order(family: Family) -> None:
    family.start("a", "import sys\nfor n in range(3):\n    print('out', n)\n    print('err', n, file=sys.stderr)")
    assert family.end() == ("a", 0)
    assert family.says("a", 6) == ["out 0", "err 0", "out 1", "err 1", "out 2", "err 2"]


def test_a_child_has_our_environment_with_its_own_on_top_and_nothing_to_read(family: Family) -> None:
    family.start("a", "import os, sys; print(os.environ['PATH'], os.environ['OWN'], repr(sys.stdin.read()))", OWN="x")
    assert family.says("a") == [f"{os.environ['PATH']} x ''"]


def test_a_child_takes_signals_as_a_program_does(family: Family) -> None:
    family.start("a", "import signal; print(*(signal.getsignal(n) is signal.SIG_IGN for n in (1, 2, 15)))")
    assert family.says("a") == ["False False False"]


def test_a_child_can_be_asked_to_end_or_ended(family: Family) -> None:
    for name in ("asked", "ended"):
        family.start(name, PAUSE)
        family.says(name)
    family.processes.terminate("asked")
    assert family.end() == ("asked", -signal.SIGTERM)
    family.processes.kill("ended")
    assert family.end() == ("ended", -signal.SIGKILL)
    family.processes.terminate("asked")  # gone already: no member is asked
    family.processes.kill("stranger")
    family.start("asked", "")  # its name is free again
    assert family.end() == ("asked", 0)


PARENT = f"""
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, '-c', {PAUSE!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid)
"""


@pytest.mark.parametrize("ending", ["", "raise SystemExit(1)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_a_child_started_ends_with_it(family: Family, ending: str) -> None:
    family.start("a", PARENT + "sys.stdin.read()\n" + ending)
    grandchild = int(family.says("a")[0])
    family.end()
    until(lambda: not alive(grandchild), "the grandchild's end")


def test_a_signal_is_for_the_child_alone(family: Family) -> None:
    """Data workers are not asked to go before the worker they read for."""
    family.start(
        "a", PARENT + "signal.signal(15, lambda *_: print('asked', child.poll()))\nprint('up')\nsignal.pause()"
    )
    family.says("a", 2)
    family.processes.terminate("a")
    assert family.says("a", 3)[2] == "asked None"


def test_closing_ends_everybody(tmp_path: Path) -> None:
    family = Family(tmp_path)
    family.start("a", "import signal; signal.signal(15, signal.SIG_IGN)\n" + PARENT + "signal.pause()")
    child, grandchild = family.processes.pids, int(family.says("a")[0])
    until(lambda: "a" in child, "the child's number")
    pid = child["a"]
    family.processes.close()
    assert not alive(pid)
    until(lambda: not alive(grandchild), "the grandchild's end")
    assert not family.broken.is_set()


def test_a_spawner_that_is_killed_takes_everybody_with_it_and_is_told(family: Family) -> None:
    family.start("a", PAUSE)
    family.says("a")
    pidfd = os.pidfd_open(family.processes.pids["a"])
    os.kill(family.processes.spawner_pid, signal.SIGKILL)
    assert select.select([pidfd], [], [], SOON_S)[0]
    os.close(pidfd)
    assert family.broken.wait(SOON_S)
    assert family.processes.gone
    family.processes.kill("a")
    with pytest.raises(PliantError, match="b cannot be started: the process that starts them is gone"):
        family.start("b", "")


def test_a_program_that_is_not_there_is_told_as_a_shell_does(family: Family) -> None:
    family.command("a", "/no/such/program")
    assert family.end() == ("a", CANNOT_START)
    assert family.says("a") == ["/no/such/program cannot be started: No such file or directory"]


def test_a_command_line_that_is_too_long_is_bad_input_and_a_long_one_is_not(family: Family) -> None:
    long = "x" * 100_000
    family.command("a", sys.executable, "-c", "import sys; print(len(sys.argv[1]))", long)
    assert family.says("a") == ["100000"]
    with pytest.raises(BadInput, match="put some of it into a file"):
        family.command("b", sys.executable, "x" * ORDER_MAX)


def test_many_children_at_once(family: Family) -> None:
    for number in range(20):
        family.start(f"n{number}", f"print({number})\nraise SystemExit({number})")
    assert {family.end() for _ in range(20)} == {(f"n{number}", number) for number in range(20)}
    for number in range(20):
        assert family.says(f"n{number}") == [str(number)]


def test_children_do_not_hold_what_we_hold(family: Family) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        family.start("a", "import os; print(*sorted(os.listdir('/proc/self/fd'), key=int))")
        assert len(family.says("a")[0].split()) == 4  # the three of every program, and the folder it lists
        assert held.fileno() > 0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
