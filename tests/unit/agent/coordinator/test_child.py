import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from pliant.agent.coordinator import child as module
from pliant.agent.coordinator.child import in_job_dir, temporary_coordinator
from pliant.agent.job_dir import JobDir
from pliant.agent.process.client import Processes
from pliant.agent.process.ports import PORTS, free_port
from pliant.cli.connect import PROGRAM
from pliant.client import Client
from pliant.credentials import read_token
from pliant.errors import PliantError
from unit.cli.program import until


class Scene:
    """A keeper with everything it needs, and what it says."""

    def __init__(self, folder: JobDir, program: tuple[str, ...] = PROGRAM) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.places: SimpleQueue[tuple[str, int]] = SimpleQueue()
        self.processes = Processes(lambda _, code: self.keeper.ended(code), lambda: None)
        self.keeper = in_job_dir(self.processes, folder, program, self)

    def say(self, text: str) -> None:
        self.said.append(text)

    def ready(self, url: str, pid: int) -> None:
        self.places.put((url, pid))

    def place(self) -> tuple[str, int]:
        return self.places.get(timeout=60)


@pytest.fixture
def folder(tmp_path: Path) -> JobDir:
    made = JobDir(tmp_path / "jobs" / "demo")
    made.make()
    return made


@pytest.fixture
def scene(folder: JobDir) -> Iterator[Scene]:
    made = Scene(folder)
    with made.processes:
        yield made


def test_it_answers_on_the_job_s_own_store_with_the_job_s_own_token(scene: Scene) -> None:
    scene.keeper.start()
    url, pid = scene.place()
    assert url == scene.keeper.url
    assert int(url.rpartition(":")[2]) in PORTS
    with Client([url], read_token(scene.folder.token)) as client:
        assert client.about().leads
    assert scene.folder.store.exists()
    scene.keeper.stop()
    until(lambda: not Path(f"/proc/{pid}").exists(), "its end")
    assert scene.said == []
    assert "stopping" in (scene.folder.logs / "coordinator.log").read_text()


def test_killed_it_is_back_on_the_same_port_with_the_same_store(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_FIRST_S", 0.01)
    scene.keeper.start()
    url, pid = scene.place()
    with Client([url], read_token(scene.folder.token), patience_s=60) as client:
        store = client.about().store
        for number in range(2):
            os.kill(pid, signal.SIGKILL)
            again, pid = scene.place()
            assert again == url
            assert client.about().store == store
            when = "in 0.01 s" if number else "now"
            assert scene.said[-2:] == [
                f"the coordinator ended with signal 9; training goes on, and it is started again {when}",
                "the coordinator answers again",
            ]
    scene.keeper.stop()


def test_one_that_cannot_start_says_why(folder: JobDir) -> None:
    folder.path.chmod(0o777)
    scene = Scene(folder)
    with (
        scene.processes,
        pytest.raises(PliantError, match=r"does not start: pliant: Other users can write to PLIANT_HOME") as error,
    ):
        scene.keeper.start()
    assert str(folder.logs / "coordinator.log") in error.value.why


def test_a_port_that_somebody_else_was_quicker_to_take_is_not_insisted_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter((taken.getsockname()[1], free_port()))
        monkeypatch.setattr(module, "free_port", lambda: next(ports))
        scene.keeper.start()
        assert not scene.keeper.url.endswith(f":{taken.getsockname()[1]}")
    scene.keeper.stop()


def test_one_that_does_not_want_to_stop_is_killed(folder: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.1)
    deaf = "import signal, json, os; signal.signal(15, signal.SIG_IGN)\n"
    deaf += "print(json.dumps({'url': 'x', 'pid': os.getpid()}, separators=(',', ':')), flush=True); signal.pause()"
    scene = Scene(folder, (PROGRAM[0], "-c", deaf))
    with scene.processes:
        scene.keeper.start()
        _, pid = scene.place()
        scene.keeper.stop()
        until(lambda: not Path(f"/proc/{pid}").exists(), "its end")
    assert scene.said == []


def test_without_a_spawner_there_is_nothing_to_stop(scene: Scene) -> None:
    scene.keeper.start()
    os.kill(scene.processes.spawner_pid, signal.SIGKILL)
    until(lambda: scene.processes.gone, "the spawner's end")
    stopping = threading.Thread(target=scene.keeper.stop)
    stopping.start()
    stopping.join(5)
    assert not stopping.is_alive()


def test_one_for_a_block_ends_with_it_and_tells_nobody(folder: JobDir) -> None:
    with temporary_coordinator(folder, PROGRAM) as url, Client([url], read_token(folder.token)) as client:
        assert client.jobs() == ()
    assert not folder.endpoint.exists()
    with Client([url], read_token(folder.token)) as client:
        assert not client.is_healthy()
