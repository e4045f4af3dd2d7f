"""`pliant run` with scripts that know nothing of Pliant: launched, killed, launched again, and all that goes wrong."""

import resource
import signal
import socket
from pathlib import Path

import pytest

from e2e.launched import Launched, all_gone, family, kill
from e2e.running import wait_for
from pliant.agent.process.ports import free_port
from unit.cli.program import environment, real

TRAINER = ("-m", "pliant_local.trainer", "--step-s", "0.05")
QUICK = ("--preload", "")  # there is no framework to be imported ahead


def trainer(folder: Path, steps: int) -> tuple[str, ...]:
    return (*QUICK, *TRAINER, "--steps", str(steps), "--checkpoint", str(folder / "steps"))


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def processes(run: Launched) -> dict[str, int]:
    """Every launched worker that runs, once its agent has said which process it is."""

    def known() -> bool:
        found = run.members(live=False)
        return bool(found) and all(found.values())

    wait_for(lambda: known() or run.process.poll() is not None, "the processes of all workers", 60.0)
    return run.members(live=False)


def test_a_script_runs_to_its_end_and_the_job_with_it(tmp_path: Path) -> None:
    with Launched(tmp_path, "--nproc-per-node", "2", *trainer(tmp_path, 5)) as run:
        assert run.ended() == 0
    assert "[pliant] the job is finished: all 2 workers ended with exit code 0" in run.lines
    assert sum("step 4 rank" in line for line in run.lines) == 2
    assert family(tmp_path) == {}


def test_a_killed_worker_has_all_started_again_and_is_not_held_against_the_script(tmp_path: Path) -> None:
    with Launched(tmp_path, "--nproc-per-node", "2", "--max-restarts", "0", *trainer(tmp_path, 200)) as run:
        victim = processes(run)
        kill(victim[max(victim)])
        run.sees("ended with signal 9")
        run.sees("generation 2 launched")
        run.signal(signal.SIGTERM)
        assert run.ended() == 128 + signal.SIGTERM
    found = real(environment(tmp_path), "status", "demo", "--json").json
    assert (found["failures"], found["state"]) == (0, "waiting")
    assert family(tmp_path) == {}


def test_a_resize_starts_all_again_with_the_new_size(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1:3", "--target", "1", *trainer(tmp_path, 400)) as run:
        run.sees("rank 0 world 1")
        assert real(environment(tmp_path), "resize", "demo", "3").code == 0
        run.sees("rank 2 world 3")
        assert real(environment(tmp_path), "cancel", "demo").code == 0
        assert run.ended() == 1
    assert "demo was cancelled: requested with pliant cancel" in run.output
    assert family(tmp_path) == {}


def test_the_first_failure_is_told_in_full_and_the_job_fails_when_they_are_used_up(tmp_path: Path) -> None:
    text = (
        "import os\ndef train():\n    raise ValueError('no such column')\nif os.environ['RANK'] == '1':\n    train()\n"
    )
    waits = "import signal\nsignal.pause()\n"
    with Launched(
        tmp_path, "--nproc-per-node", "2", "--max-restarts", "1", *QUICK, script(tmp_path, text + waits)
    ) as run:
        assert run.ended() == 1
    why = "it crashed 2 times (--max-restarts 1); "
    assert f"pliant: demo failed: {why}" in run.output
    last = run.output[run.output.index("pliant: demo failed") :]
    assert "rank 1 (" in last
    assert "line 3, in train" in last
    assert "ValueError: no such column" in last
    assert "Its output is in" in last
    assert family(tmp_path) == {}


def test_a_module_that_is_missing_is_told_once_and_not_tried_again(tmp_path: Path) -> None:
    path = script(tmp_path, "import no_such_module\n")
    with Launched(tmp_path, "--nproc-per-node", "2", *QUICK, path) as run:
        assert run.ended() == 1
    missing = "ModuleNotFoundError: No module named 'no_such_module'"
    assert f"ended with exit code 1: {missing}" in run.output
    assert "pliant: demo failed: it cannot start: " in run.output
    assert run.output.count(f"] {missing}") <= 2  # one for each worker


def test_a_recorded_error_is_told_as_torchelastic_wrote_it(tmp_path: Path) -> None:
    text = (
        "import json, os, sys\n"
        "said = {'message': {'message': 'RuntimeError: out of luck', 'extraInfo': {'py_callstack': 'its stack'}}}\n"
        "open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write(json.dumps(said))\n"
        "sys.exit(7)\n"
    )
    with Launched(tmp_path, "--max-restarts", "0", *QUICK, script(tmp_path, text)) as run:
        assert run.ended() == 1
    assert "ended with exit code 7: RuntimeError: out of luck" in run.output
    assert "\n    its stack" in run.output


def test_a_script_with_a_syntax_error_is_told_before_anything_is_started(tmp_path: Path) -> None:
    with Launched(tmp_path, script(tmp_path, "def f(:\n")) as run:
        assert run.ended() == 2
    assert "script.py, line 1: invalid syntax" in run.output
    assert not (run.folder / "store.db").exists()


def test_workers_that_ignore_sigterm_and_leave_children_are_gone_all_the_same(tmp_path: Path) -> None:
    text = (
        "import os, signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "sleeps = 'import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()'\n"
        "for session in (False, True):\n"
        "    subprocess.Popen([sys.executable, '-c', sleeps], start_new_session=session)\n"
        "print('started', flush=True)\n"
        "signal.pause()\n"
    )
    limits = ("--grace-s", "1", "--shutdown-timeout", "1")
    with Launched(tmp_path, "--nproc-per-node", "2", *limits, *QUICK, script(tmp_path, text)) as run:
        run.sees("started", 2)
        started = family(tmp_path)
        assert len(started) >= 2 + 3 * 2
        run.signal(signal.SIGTERM)
        assert run.ended() == 128 + signal.SIGTERM
    all_gone(started, tmp_path)


def test_nothing_is_left_after_the_agent_was_killed_and_the_same_command_goes_on(tmp_path: Path) -> None:
    with Launched(tmp_path, "--nproc-per-node", "2", *trainer(tmp_path, 60)) as run:
        run.sees("step 5 rank")
        started = family(tmp_path)
        run.signal(signal.SIGKILL)
        assert run.ended() == -signal.SIGKILL
        all_gone(started, tmp_path)
    with Launched(tmp_path, "--nproc-per-node", "2", *trainer(tmp_path, 60)) as again:
        assert again.ended() == 0
    assert "step 0 rank" not in again.output
    assert "step 59 rank" in again.output
    assert family(tmp_path) == {}


def test_a_killed_coordinator_does_not_stop_launched_workers(tmp_path: Path) -> None:
    with Launched(tmp_path, "--nproc-per-node", "2", *trainer(tmp_path, 100)) as run:
        coordinator = run.endpoint_when_there()["pid"]
        run.sees("step 1 rank", 2)
        kill(coordinator)
        run.sees("the coordinator answers again")
        assert run.ended() == 0
    assert "generation 2" not in run.output


def test_logs_on_a_full_disk_are_given_up_and_training_goes_on(tmp_path: Path) -> None:
    with Launched(tmp_path, *trainer(tmp_path, 60), PLIANT_AGENT="here") as run:
        run.sees("step 1 rank 0")
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (0, 0))  # its files may not grow: a disk that is full
        assert run.ended() == 0
    assert "here-g1.0.log cannot be written: File too large. What follows is not in it" in run.output
    assert "step 59 rank 0 world 1" in run.output


def test_a_taken_port_is_told_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Launched(tmp_path, "--rdzv-endpoint", f"127.0.0.1:{port}", *trainer(tmp_path, 5)) as run:
            assert run.ended() == 2
    assert f"127.0.0.1:{port}" in run.output
    assert "--token-file" in run.output
    assert family(tmp_path) == {}


def test_a_job_that_runs_here_is_refused_with_the_command_that_adds_a_worker(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1:3", "--target", "1", *trainer(tmp_path, 400)) as run:
        run.sees("rank 0 world 1")
        second = real(environment(tmp_path), "run", "--job", "demo", "--workers", "1:3", *trainer(tmp_path, 5))
        assert second.code == 3
        assert "demo runs on this machine already" in second.err
        assert "pliant resize demo N" in second.err
        run.signal(signal.SIGINT)
        assert run.ended() == 130


@pytest.mark.long
def test_a_job_that_has_ended_is_attempted_again(tmp_path: Path) -> None:
    for attempt in (1, 2):
        with Launched(
            tmp_path, *QUICK, script(tmp_path, "import os; print(os.environ['TORCHELASTIC_RESTART_COUNT'])")
        ) as run:
            assert run.ended() == 0
        assert any(line.endswith("] 0") for line in run.lines)
        assert real(environment(tmp_path), "status", "demo", "--json").json["attempt"] == attempt


def second_agent(first: Launched, home: Path, endpoint: str, *args: str, name: str = "second") -> Launched:
    """Another machine's agent, as far as any member can tell."""
    token = home / "token-for-them"
    home.mkdir(exist_ok=True)
    made = real(environment(first.home), "token", "create", "--scope", "join", "--job", first.job, "--out", str(token))
    assert made.code == 0, made.err
    where = ("--rdzv-endpoint", endpoint, "--token-file", str(token))
    return Launched(home, *where, *args, job=first.job, PLIANT_AGENT=name)


@pytest.fixture
def endpoint() -> str:
    return f"127.0.0.1:{free_port()}"


def test_a_second_agent_makes_the_world_larger_and_leaves_it_as_it_was(tmp_path: Path, endpoint: str) -> None:
    flags = ("--nnodes", "1:2", "--nproc-per-node", "1", *trainer(tmp_path, 4000))
    with Launched(tmp_path / "a", "--rdzv-endpoint", endpoint, *flags, PLIANT_AGENT="first") as first:
        first.sees("rank 0 world 1")
        with second_agent(first, tmp_path / "b", endpoint, *flags) as second:
            first.sees("rank 0 world 2")
            second.sees("rank 1 world 2")
            second.signal(signal.SIGTERM)
            assert second.ended() == 128 + signal.SIGTERM
        ones = first.output.count("rank 0 world 1")
        first.sees("rank 0 world 1", ones + 1)
        first.signal(signal.SIGTERM)
        assert first.ended() == 128 + signal.SIGTERM
    assert family(tmp_path / "a") == family(tmp_path / "b") == {}


@pytest.mark.long
def test_two_agents_of_one_name_are_told_apart(tmp_path: Path, endpoint: str) -> None:
    flags = ("--nnodes", "1:2", "--nproc-per-node", "1", *trainer(tmp_path, 4000))
    with Launched(tmp_path / "a", "--rdzv-endpoint", endpoint, *flags, PLIANT_AGENT="same") as first:
        first.sees("rank 0 world 1")
        with second_agent(first, tmp_path / "b", endpoint, *flags, name="same") as second:
            assert second.ended() == 3
        assert "another agent is called same, at 127.0.0.1: set PLIANT_AGENT to another name here" in second.output
        assert "generation 2" not in first.output
