import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pliant.agent.job_dir import LOOKER, RUNNER, EndpointFile, JobDir
from pliant.errors import BadInput, Refused

HOLD = """
import sys
from pathlib import Path
from pliant.agent.job_dir import JobDir
with JobDir(Path(sys.argv[1])).lock(sys.argv[2], 0):
    print("held", flush=True)
    sys.stdin.read()
"""


FULL = """
import resource, sys
from pathlib import Path
from pliant.agent.job_dir import RUNNER, JobDir
from pliant.errors import BadInput
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no file may have a byte: a disk that is full
try:
    with JobDir(Path(sys.argv[1])).lock(RUNNER, 1.0):
        pass
except BadInput as error:
    print(error.why)
"""


@pytest.fixture
def folder(tmp_path: Path) -> JobDir:
    made = JobDir(tmp_path / "home" / "jobs" / "demo")
    made.make()
    return made


@contextmanager
def held(folder: JobDir, kind: str) -> Iterator["subprocess.Popen[bytes]"]:
    """By another process, until the block ends or the process does."""
    command = [sys.executable, "-c", HOLD, str(folder.path), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_it_is_its_owner_s_alone(folder: JobDir) -> None:
    for path in (folder.path, folder.path.parent, folder.path.parents[1], folder.logs, folder.checkpoints):
        assert path.stat().st_mode & 0o777 == 0o700, path
    folder.make()  # it is there: nothing to do
    assert folder.job == "demo"


def test_where_it_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(BadInput, match=r"cannot be made: .* Set PLIANT_HOME to a place you may write to"):
        JobDir(tmp_path / "home" / "jobs" / "demo").make()


def test_the_endpoint_is_read_as_it_was_written_and_forgotten(folder: JobDir) -> None:
    assert folder.read_endpoint() is None
    for port in (20001, 20002):
        folder.write_endpoint(f"http://127.0.0.1:{port}", 4242)
        assert folder.read_endpoint() == EndpointFile(f"http://127.0.0.1:{port}", folder.token)
    assert folder.endpoint.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in folder.path.iterdir()) == ["checkpoints", "endpoint.json", "errors", "logs"]
    folder.forget_endpoint()
    folder.forget_endpoint()
    assert folder.read_endpoint() is None


@pytest.mark.parametrize("text", ['{"url": "http://h:1"}', '{"url": "http://h:1", "token_file": "/elsewhere/token"}'])
def test_the_token_of_an_endpoint_is_the_folder_s_whatever_the_file_says(folder: JobDir, text: str) -> None:
    folder.endpoint.write_text(text)
    assert folder.read_endpoint() == EndpointFile("http://h:1", folder.token)


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ("", "PLIANT_HOME"),
        ("jobs", "The folder of jobs"),
        ("jobs/demo", "The job's folder"),
        ("jobs/demo/endpoint.json", "The address"),
    ],
)
def test_a_folder_that_others_can_write_to_is_not_believed(folder: JobDir, part: str, what: str) -> None:
    folder.write_endpoint("http://127.0.0.1:1", 1)
    path = folder.path.parents[1] / part
    path.chmod(path.stat().st_mode | 0o022)
    for act in (folder.make, folder.read_endpoint, lambda: folder.lock(LOOKER, 0.0).__enter__()):
        with pytest.raises(BadInput, match=rf"Other users can write to {what}.* chmod [67]00"):
            act()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_an_endpoint_that_another_user_wrote_is_not_believed(folder: JobDir) -> None:
    folder.write_endpoint("http://127.0.0.1:1", 1)
    os.chown(folder.endpoint, 65534, 65534)
    with pytest.raises(BadInput, match=r"belongs to another user \(uid 65534\)"):
        folder.read_endpoint()


def test_an_endpoint_that_cannot_be_written_is_told(folder: JobDir) -> None:
    folder.endpoint.mkdir()
    with pytest.raises(BadInput, match=r"endpoint\.json cannot be written"):
        folder.write_endpoint("http://h:1", 1)
    assert [path.name for path in folder.path.glob(".*")] == []


def test_a_job_that_is_run_is_known_to_be_and_not_run_twice(folder: JobDir) -> None:
    assert not folder.is_run()
    with held(folder, RUNNER) as process:
        assert folder.is_run()
        for kind in (RUNNER, LOOKER):
            with pytest.raises(Refused, match=f"demo runs on this machine already, as process {process.pid}"):
                folder.lock(kind, 20.0).__enter__()
    assert not folder.is_run()
    with folder.lock(RUNNER, 0):
        assert folder.is_run()


def test_who_looks_does_not_run_it_and_is_waited_for(folder: JobDir) -> None:
    with held(folder, LOOKER) as process:
        assert not folder.is_run()
        with pytest.raises(Refused, match="runs on this machine already"):
            folder.lock(RUNNER, 0).__enter__()
        assert process.stdin is not None
        process.stdin.close()  # it ends some time soon
        with folder.lock(RUNNER, 20.0):
            assert folder.is_run()


def test_a_full_disk_is_told_with_what_to_do(folder: JobDir) -> None:
    folder.make()
    tried = subprocess.run(
        [sys.executable, "-c", FULL, str(folder.path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert tried.stdout == (
        f"{folder.path}/lock cannot be written: File too large. "
        "Free space, or set PLIANT_HOME to a folder on another disk.\n"
    ), tried.stderr


def test_a_killed_holder_holds_nothing(folder: JobDir) -> None:
    with held(folder, RUNNER) as process:
        process.kill()
        process.wait()
        assert not folder.is_run()
        with folder.lock(LOOKER, 0):
            assert not folder.is_run()


def test_a_folder_that_is_not_there_is_not_run_and_cannot_be_held(tmp_path: Path) -> None:
    nothing = JobDir(tmp_path / "jobs" / "demo")
    assert not nothing.is_run()
    with pytest.raises(BadInput, match="cannot be used"):
        nothing.lock(LOOKER, 0).__enter__()


def test_a_child_does_not_inherit_the_lock(folder: JobDir) -> None:
    with folder.lock(RUNNER, 0):
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    with child:
        assert not folder.is_run()
        os.kill(child.pid, 9)
