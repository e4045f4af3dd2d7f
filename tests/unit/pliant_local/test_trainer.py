"""The trainer that needs no framework: real processes that need one another."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pliant import settings
from pliant_local import trainer
from unit.cli.program import environment, free_port, until

SOON_S = 30.0


@contextmanager
def launched(
    port: int, ranks: range, world: int, *args: str, run_id: str = ""
) -> Iterator[list[subprocess.Popen[str]]]:
    """Some ranks of a launch, as torchrun would start them."""
    started = []
    try:
        for rank in ranks:
            env = environment(
                Path.home(),
                RANK=str(rank),
                WORLD_SIZE=str(world),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                TORCHELASTIC_RUN_ID=run_id,
            )
            command = [sys.executable, "-m", "pliant_local.trainer", *args]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env))
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def output(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate(timeout=SOON_S)
    return out.splitlines()


def test_everybody_comes_to_the_last_step_and_the_next_launch_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with launched(free_port(), range(3), 3, "--steps", "4", "--step-s", "0", "--checkpoint", str(folder)) as ranks:
        for rank, process in enumerate(ranks):
            assert output(process) == [f"step {step} rank {rank} world 3" for step in range(1, 5)]
            assert process.returncode == 0
    assert json.loads((folder / "step.json").read_text()) == {"step": 4}
    with launched(free_port(), range(2), 2, "--steps", "6", "--step-s", "0", "--checkpoint", str(folder)) as ranks:
        for rank, process in enumerate(ranks):
            assert output(process) == [f"step {step} rank {rank} world 2" for step in (5, 6)]
    assert [path.name for path in folder.iterdir()] == ["step.json"], "no half of a file is left"


def test_others_are_told_where_rank_0_goes_on_from(tmp_path: Path) -> None:
    trainer.write_step(tmp_path, 7)
    port = free_port()
    first = launched(port, range(1), 2, "--steps", "8", "--step-s", "0", "--checkpoint", str(tmp_path))
    with first as [zero], launched(port, range(1, 2), 2, "--steps", "8", "--step-s", "0") as [one]:
        assert output(one) == ["step 8 rank 1 world 2"], "though it has no checkpoint itself"
        assert output(zero) == ["step 8 rank 0 world 2"]


def test_a_file_makes_it_hurry(tmp_path: Path) -> None:
    (tmp_path / "hurry").touch()
    with launched(
        free_port(), range(2), 2, "--steps", "3", "--step-s", "1000", "--hurry", str(tmp_path / "hurry")
    ) as all_:
        assert [len(output(process)) for process in all_] == [3, 3]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_peer_is_felt_by_everybody(victim: int) -> None:
    with launched(free_port(), range(3), 3, "--steps", "100000", "--step-s", "0.01") as ranks:
        for process in ranks:
            assert process.stdout is not None
            process.stdout.readline()
        ranks[victim].send_signal(signal.SIGKILL)
        for rank, process in enumerate(ranks):
            if rank != victim:
                assert "is lost" in output(process)[-1]
                assert process.returncode == 1


def test_one_that_does_not_come_is_not_waited_for_for_ever() -> None:
    with launched(free_port(), range(2), 3, "--wait-s", "1") as ranks:
        assert re.fullmatch(r"trainer: only [12] of 3 came within 1 s", output(ranks[0])[-1])
        output(ranks[1])
        assert [process.returncode for process in ranks] == [1, 1]
    with launched(free_port(), range(1, 2), 2, "--wait-s", "0.3") as [lonely]:
        assert "cannot be reached" in output(lonely)[-1]


@pytest.mark.parametrize("hello", [b"GET / HTTP/1.0\r\n\r\n", b'{"prefix": "other", "rank": 1}\n', b"[]\n", b""])
def test_a_stranger_is_refused_and_harms_nobody(hello: bytes) -> None:
    port = free_port()
    with launched(port, range(1), 2, "--steps", "2", "--step-s", "0") as [zero]:
        assert zero.stdout is not None
        stranger = _connected(port)
        with stranger:
            stranger.sendall(hello)
            stranger.shutdown(socket.SHUT_WR)
            assert "refused a connection from 127.0.0.1" in zero.stdout.readline()
            with launched(port, range(1, 2), 2, "--steps", "2", "--step-s", "0") as [one]:
                assert output(one) == ["step 1 rank 1 world 2", "step 2 rank 1 world 2"]
        assert output(zero) == ["step 1 rank 0 world 2", "step 2 rank 0 world 2"]


def test_peers_of_another_run_are_strangers() -> None:
    port = free_port()
    with launched(port, range(1), 2, run_id="mine") as [zero], launched(port, range(1, 2), 2, run_id="other") as [one]:
        assert zero.stdout is not None
        assert "refused a connection" in zero.stdout.readline()
        assert "is lost" in output(one)[-1]


def test_alone_nobody_is_needed(tmp_path: Path) -> None:
    said = settings.read_torchrun({})
    assert (said.rank, said.world_size) == (0, 1)
    trainer.train(said, 3, trainer.Pace(0.0), tmp_path, 1.0)
    assert trainer.read_step(tmp_path) == 3
    assert trainer.read_step(None) == 0
    assert trainer.read_step(tmp_path / "elsewhere") == 0


def test_torchruns_variables_are_read() -> None:
    env = {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "x",
    }
    assert settings.read_torchrun(env) == settings.TorchrunSettings(2, 4, "10.0.0.1", 29500, "x")


def _connected(port: int) -> socket.socket:
    """As soon as a member listens there."""
    found: list[socket.socket] = []

    def listens() -> bool:
        with suppress(ConnectionRefusedError):
            trial = socket.create_connection(("127.0.0.1", port), timeout=SOON_S)
            if trial.getsockname() != trial.getpeername():  # on loopback one can meet oneself
                found.append(trial)
            else:
                trial.close()
        return bool(found)

    until(listens, f"a listener at {port}")
    return found[0]
