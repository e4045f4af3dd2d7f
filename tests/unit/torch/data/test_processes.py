"""However a training process ends, its data workers end with it, and its sockets before them (H20)."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("parent.py")
PATIENCE_S = 60


class Parent:
    """A running training process, and descriptors that tell when its data workers are gone."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(self.pids) == 2

    @contextmanager
    def watched(self) -> Iterator[list[int]]:
        watched = []
        for pid in self.pids:
            with suppress(ProcessLookupError):  # it is gone already
                watched.append(os.pidfd_open(pid))
        try:
            yield watched
        finally:
            for one in watched:
                os.close(one)

    def end(self) -> tuple[int, str]:
        """Wait for the end of it, and give its exit status and what it said on standard error."""
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said


def wait_until_gone(watched: list[int]) -> None:
    for one in watched:
        assert select.select([one], [], [], PATIENCE_S)[0], "a data worker lives on"


@contextmanager
def parent(how: str, *more: str) -> Iterator[Parent]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(PROGRAM), how, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield Parent(process)
        finally:
            process.kill()


@pytest.mark.parametrize("how", ["busy", "idle"])
def test_data_workers_die_with_a_killed_parent_and_its_peers_see_the_end(how: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        parent(how, str(server.getsockname()[1])) as one,
        one.watched() as watched,
    ):
        peer, _ = server.accept()
        one.process.kill()
        with peer, suppress(ConnectionResetError):  # the other way in which a kernel says it
            peer.settimeout(PATIENCE_S)
            assert peer.recv(1) == b""
        wait_until_gone(watched)
        assert one.end() == (-signal.SIGKILL, "")


def test_a_parent_that_leaves_without_closing_leaves_nothing() -> None:
    with parent("leave") as one, one.watched() as watched:
        wait_until_gone(watched)
        assert one.end() == (3, "")


def test_a_parent_that_exits_at_once_leaves_nothing() -> None:
    with parent("exit") as one, one.watched() as watched:
        wait_until_gone(watched)
        assert one.end() == (5, "")


def test_ctrl_c_ends_everything_and_only_the_parent_speaks() -> None:
    with parent("busy") as one, one.watched() as watched:
        os.killpg(one.process.pid, signal.SIGINT)
        wait_until_gone(watched)
        status, said = one.end()
        assert status == -signal.SIGINT
        assert said.count("Traceback") == 1
        assert "KeyboardInterrupt" in said
