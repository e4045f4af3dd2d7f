"""Usage of workers, from the real /proc and from one that tests wrote."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from e2e.running import wait_for
from pliant.agent.process.usage import Usage, is_stopped, usage, usages

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

BUSY = """
import subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
child.wait()
"""


def process(proc: Path, pid: int, parent: int, group: int, cpu_s: float = 1.0, name: str = "python") -> None:
    """One entry, as the system writes it."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    ticks = round(cpu_s * TICKS)
    times = f"{ticks} 0 0 0"
    folder.joinpath("stat").write_text(
        f"{pid} ({name}) S {parent} {group} 1 0 -1 4194304 10 0 0 0 {times} 20 0 3 0 1000 1000000 100 184467\n"
    )


def test_a_worker_has_what_is_in_its_group_and_what_descends_from_it(tmp_path: Path) -> None:
    process(tmp_path, 1, 0, 1)
    process(tmp_path, 10, 1, 10, 1.0)  # the worker
    process(tmp_path, 11, 10, 10, 2.0)  # its child, in its group
    process(tmp_path, 12, 11, 12, 4.0)  # a grandchild in a session of its own
    process(tmp_path, 13, 1, 10, 8.0)  # left by a child of its that ended: in the group still
    process(tmp_path, 20, 1, 20, 16.0)  # another worker
    process(tmp_path, 30, 1, 30, 32.0)  # no member's
    (tmp_path / "self").mkdir()
    (tmp_path / "99").mkdir()  # gone before it could be read
    found = usages({"a": 10, "b": 20, "gone": 77}, tmp_path)
    assert found == {
        "a": Usage(15.0, 4 * 100 * PAGE, 12, 4, "S"),
        "b": Usage(16.0, 100 * PAGE, 3, 1, "S"),
    }
    assert usage(77, tmp_path) is None
    assert usage(10, tmp_path) == found["a"]


def test_a_programs_name_may_hold_anything(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, 10, name="a) S 5 5 (b")
    assert usage(10, tmp_path) == Usage(1.0, 100 * PAGE, 3, 1, "S")


def test_parents_in_a_circle_lead_nowhere(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, 10)
    process(tmp_path, 11, 12, 11)
    process(tmp_path, 12, 11, 12)
    assert usages({"a": 10}, tmp_path)["a"].processes == 1


def test_a_child_that_is_a_worker_itself_counts_for_itself(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, 10)
    process(tmp_path, 11, 10, 11)
    process(tmp_path, 12, 11, 12)
    found = usages({"parent": 10, "child": 11}, tmp_path)
    assert (found["parent"].processes, found["child"].processes) == (1, 2)


def test_of_a_real_worker_its_childs_time_counts() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, process_group=0, text=True) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"

            def used() -> Usage:
                found = usage(worker.pid)
                assert found is not None
                return found

            begun = used()
            wait_for(lambda: used().cpu_s > begun.cpu_s + 0.1, "the child to compute")
            now = used()
            assert (now.processes, now.threads) == (2, 3)
            assert now.rss_bytes > 5_000_000
            assert not is_stopped(worker.pid)
            os.kill(worker.pid, signal.SIGSTOP)
            wait_for(lambda: used().state == "T", "it to be stopped")
            assert is_stopped(worker.pid)
        finally:
            for entry in usages_tree(worker.pid):
                os.kill(entry, signal.SIGKILL)


def test_a_process_that_is_gone_is_not_stopped(tmp_path: Path) -> None:
    assert not is_stopped(1, tmp_path)


def usages_tree(pid: int) -> list[int]:
    """A process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [*map(int, children), pid]
