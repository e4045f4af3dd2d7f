"""Only the processes of a job are taken for them."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.agent.job_dir import RUNNER, JobDir
from pliant.chaos.processes import ProcessRef, find_coordinator, find_member, is_alive, send_signal
from unit.chaos.victims import JOB, until, victim


def test_a_worker_is_known_by_its_environment() -> None:
    with victim("w1") as one:
        assert find_member(one.pid, JOB, "w1", "mark:", 0) == one.process
        assert find_member(one.pid, "other", "w1", "mark:", 0) is None
        assert find_member(one.pid, JOB, "w2", "mark:", 0) is None


@pytest.mark.parametrize("pid", [0, 1, -1, 2**22 + 1])
def test_nobody_is_known_by_a_number_that_is_nobodys(pid: int) -> None:
    assert find_member(pid, JOB, "w1", "mark:", 0) is None


def test_a_forked_worker_is_known_by_its_mark_and_its_ancestors() -> None:
    code = (
        "import ctypes, os, sys\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.mmap.restype = ctypes.c_void_p\n"
        "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]\n"
        "libc.mmap(None, 1, 0, 2, os.memfd_create('mark:w1'), 0)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        found = find_member(child.pid, JOB, "w1", "mark:", os.getpid())
        assert found is not None
        assert found.pid == child.pid
        assert find_member(child.pid, JOB, "w2", "mark:", os.getpid()) is None
        assert find_member(child.pid, JOB, "w1", "mark:", child.pid) is None  # it does not descend from itself
        assert find_member(child.pid, JOB, "w1", "other:", os.getpid()) is None


def test_a_coordinator_is_known_by_its_home(tmp_path: Path) -> None:
    env = {**os.environ, "PLIANT_HOME": str(tmp_path / "jobs" / "demo")}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env) as child:
        until(lambda: find_coordinator(child.pid, tmp_path / "jobs" / "demo") is not None, "its environment")
        assert find_coordinator(child.pid, tmp_path / "jobs" / "other") is None
        assert find_coordinator(0, tmp_path / "jobs" / "demo") is None


def test_one_that_ended_is_nobody_and_gets_no_signal() -> None:
    with victim() as one:
        assert is_alive(one.process)
        assert send_signal(one.process, signal.SIGKILL)
        until(lambda: not is_alive(one.process), "its end")  # also while it is not buried
        assert not send_signal(one.process, signal.SIGCONT)
        one.child.wait()
        assert not send_signal(one.process, signal.SIGCONT)
        assert find_member(one.pid, JOB, "w1", "mark:", 0) is None


def test_another_one_of_the_same_number_gets_no_signal() -> None:
    with victim() as one:
        another = ProcessRef(one.pid, one.process.start_ticks - 1)
        assert not send_signal(another, signal.SIGKILL)
        assert not is_alive(another)
        assert is_alive(replace(another, start_ticks=one.process.start_ticks))


def test_the_folder_says_which_processes_keep_a_job(tmp_path: Path) -> None:
    folder = JobDir(tmp_path / "jobs" / "demo")
    assert (folder.runner_pid(), folder.coordinator_pid()) == (0, 0)
    folder.make()
    folder.write_endpoint("http://127.0.0.1:1", 77)
    assert folder.coordinator_pid() == 77
    folder.endpoint.write_text("{}")
    assert folder.coordinator_pid() == 0
    with folder.lock(RUNNER, 0.0):
        assert folder.runner_pid() == os.getpid()
    assert folder.runner_pid() == 0
    with folder.lock("look", 0.0):
        assert folder.runner_pid() == 0
