"""`pliant run` with a script that trains without a framework: a whole job, and everything that can be killed in it."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from e2e.launched import TRAINER, Launched, all_gone, family, kill
from e2e.running import start, wait_for
from pliant.train.checkpoint import open_storage, owner_name
from unit.cli.program import PLIANT, environment, real

BARE = ("--preload", "")  # there is no framework to be imported ahead
PACED = (*BARE, str(TRAINER), "0.02")
HELD = (*BARE, str(TRAINER), "go")  # no step before `go` is called
LIVE = (*BARE, "--mode", "live")


def go(run: Launched) -> None:
    (run.folder / "checkpoints" / "go").touch()


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def test_a_place_that_another_job_of_that_name_saves_to_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    """The same command with another PLIANT_HOME, say."""
    place = open_storage(tmp_path / "place" / "demo")
    mark = place.claim(owner_name(1.7e9))
    env = environment(tmp_path / "home")
    refused = real(env, "run", "--job", "demo", "--checkpoint-dir", str(tmp_path / "place"), "--workers", "1", *PACED)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"pliant: {tmp_path}/place/demo holds the checkpoints of another job of this name")
    assert place.read_owner() == mark
    assert real(env, "status", "demo").code == 3, "nor was there ever such a job"
    assert family(tmp_path / "home") == {}


def test_a_job_runs_to_its_end_and_answers_afterwards_too(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "2:3", "--target", "2", *PACED) as run:
        assert run.ended() == 0
    assert "[pliant] the job is finished: all 20 steps are committed" in run.lines
    members = sorted(path.stem for path in (run.folder / "logs").glob("*-*.log"))
    assert len(members) == 2
    for member in members:
        assert f"[{member}] joined as {member}" in run.lines
        assert (run.folder / "logs" / f"{member}.log").read_text().startswith(f"joined as {member}\n")
    assert not (run.folder / "endpoint.json").exists()
    assert family(tmp_path) == {}

    env = environment(tmp_path)
    found = real(env, "status", "demo", "--json").json
    assert [found[key] for key in ("state", "step", "total_steps", "epoch", "target")] == ["finished", 20, 20, 3, 2]
    assert found["why"] == "all 20 steps are committed"
    audit = real(env, "audit", "demo", "--json")
    assert (audit.code, audit.json["ok"], audit.json["samples"], audit.json["steps"]) == (0, True, 160, 20)
    events = real(env, "events", "demo", "--follow").out.splitlines()
    assert events[-1].endswith("the job is finished: all 20 steps are committed")
    for command in (("resize", "demo", "3"), ("drain", "demo", members[0])):
        refused = real(env, *command)
        assert (refused.code, refused.err) == (3, "pliant: job demo is finished: all 20 steps are committed\n")
    again = real(env, "run", "--job", "demo", "--workers", "1:3", *PACED)
    assert (again.code, again.err) == (0, "")
    found = real(env, "status", "demo", "--json").json
    assert [found[key] for key in ("state", "step", "attempt")] == ["finished", 20, 2]
    audit = real(env, "audit", "demo", "--json")
    assert (audit.code, audit.json["ok"], audit.json["samples"], audit.json["steps"]) == (0, True, 160, 20)
    assert family(tmp_path) == {}


def test_a_killed_coordinator_is_started_again_and_nobody_else_notices(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1:2", *HELD) as run:
        before, members = run.endpoint_when_there(), run.has_members(2)
        kill(before["pid"])
        run.sees("[pliant] the coordinator ended with signal 9; training goes on, and it is started again now")
        run.sees("[pliant] the coordinator answers again")
        wait_for(lambda: run.members() == members, "the same members in the same processes")
        assert run.endpoint["url"] == before["url"]
        assert run.endpoint["pid"] != before["pid"]
        go(run)
        assert run.ended() == 0
    assert real(environment(tmp_path), "audit", "demo", "--json").json["ok"]


def test_a_killed_worker_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1:2", *HELD) as run:
        before = run.has_members(2)
        victim, survivor = sorted(before)
        kill(before[victim])
        run.sees(f"{victim} was lost: its process ended with signal 9")
        wait_for(lambda: victim not in run.members(), "the victim to be gone")
        after = run.has_members(2)
        assert after[survivor] == before[survivor]
        go(run)
        assert run.ended() == 0


def test_another_terminal_changes_the_size_and_drains(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with Launched(tmp_path, "--workers", "1:3", "--target", "1", *HELD) as run:
        (first,) = run.has_members(1)
        assert real(env, "resize", "demo", "2").out == "demo: target set to 2 workers.\n"
        run.has_members(2)
        assert real(env, "drain", "demo", first).code == 0
        run.sees(f"{first} left: drained")
        wait_for(lambda: len(run.members()) == 2 and first not in run.members(), "its replacement")
        found = real(env, "status", "demo", "--json").json
        assert {line["agent"] for line in found["members"]} == {first.rpartition("-")[0]}
        assert {line["id"]: line["pid"] for line in found["members"]} == run.members()
        go(run)
        assert run.ended() == 0


def test_kill_9_leaves_nobody_behind_and_the_same_command_goes_on(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1:2", *HELD) as run:
        run.has_members(2)
        started = family(tmp_path)
        assert len(started) == 5  # itself, the spawner, the coordinator, two workers
        run.process.kill()
        all_gone(started, tmp_path)
    waiting = real(environment(tmp_path), "status", "demo", "--json").json
    assert waiting["state"] in ("starting", "running")
    with Launched(tmp_path, "--workers", "1:2", *HELD) as run:
        run.has_members(2)
        go(run)
        assert run.ended() == 0
    assert real(environment(tmp_path), "audit", "demo", "--json").json["ok"]


def test_ctrl_c_lets_workers_leave_and_the_same_command_goes_on(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1:2", *HELD) as run:
        members = run.has_members(2)
        started = family(tmp_path)
        run.signal(signal.SIGINT)
        assert run.ended() == 130
        all_gone(started, tmp_path)
    assert "[pliant] SIGINT: the workers save and leave within 30 s; again to end now" in run.lines
    for member in members:
        assert f"[pliant] {member} left: drained" in run.lines
    assert run.lines[-2:] == [
        "[pliant] All workers have left. The next start resumes at step 0; nothing is lost.",
        "[pliant] next: start it with the same command",
    ]
    follow = real(environment(tmp_path), "events", "demo", "--follow")
    assert (follow.code, follow.err) == (
        0,
        "pliant: demo no longer runs on this machine. Resume it with `pliant run`.\n",
    )
    with Launched(tmp_path, "--workers", "1:2", *PACED) as run:
        assert run.ended() == 0


STUBBORN = """
import signal, subprocess, sys, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"])
print("here with", child.pid, flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize(("number", "second"), [(signal.SIGTERM, signal.SIGINT), (signal.SIGHUP, signal.SIGHUP)])
def test_a_second_signal_ends_workers_that_do_not_want_to_go_with_all_they_started(
    tmp_path: Path, number: signal.Signals, second: signal.Signals
) -> None:
    with Launched(tmp_path, "--workers", "2", *BARE, script(tmp_path, STUBBORN)) as run:
        run.sees("here with", 2)
        started = family(tmp_path)
        assert len(started) == 7
        run.signal(number)
        run.sees(f"{number.name}: the workers save and leave")
        assert run.process.poll() is None
        run.signal(second)
        assert run.ended() == 128 + number
        all_gone(started, tmp_path)


def test_the_grace_period_ends_workers_that_do_not_want_to_go(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1", "--grace-s", "0.1", *BARE, script(tmp_path, STUBBORN)) as run:
        run.sees("here with")
        run.signal(signal.SIGTERM)
        assert run.ended() == 143
    assert family(tmp_path) == {}


def test_a_killed_spawner_takes_everybody_with_it_and_is_said(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1", *HELD) as run:
        run.has_members(1)
        started = family(tmp_path)
        (spawner,) = (
            pid for pid in started if "pliant.agent.process.spawner" in Path(f"/proc/{pid}/cmdline").read_text()
        )
        kill(spawner)
        assert run.ended() == 1
        all_gone(started, tmp_path)
    assert (
        "pliant: The process that starts workers was killed, and all workers with it. Run the command again."
        in run.lines
    )


def test_a_worker_s_end_is_the_end_of_all_it_started(tmp_path: Path) -> None:
    text = (
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\nprint(1/0)"
    )
    with Launched(tmp_path, "--workers", "1", "--max-restarts", "0", script(tmp_path, text)) as run:
        assert run.ended() == 1
    assert family(tmp_path) == {}


def test_a_script_that_cannot_run_ends_the_job_with_its_reason(tmp_path: Path) -> None:
    path = script(tmp_path, "raise NameError('no such thing')\n")
    with Launched(tmp_path, "--workers", "1", *LIVE, path) as run:
        assert run.ended() == 1
    assert run.output.count("] NameError: no such thing") == 1  # it is not tried again
    assert "ended with exit code 1 before it had joined" in run.output
    assert "pliant: demo failed: it cannot start: " in run.output
    assert "ended with exit code 1: NameError: no such thing" in run.output
    assert real(environment(tmp_path), "status", "demo", "--json").json["state"] == "failed"


def test_a_worker_that_is_killed_before_it_joins_is_replaced_and_not_held_against_the_script(tmp_path: Path) -> None:
    text = "import os, signal\nprint('process', os.getpid(), flush=True)\nsignal.pause()"
    with Launched(tmp_path, "--workers", "1", "--max-restarts", "0", *LIVE, script(tmp_path, text)) as run:
        for number in range(1, 4):
            run.sees("] process", number)
            kill(int(run.output.rpartition("] process ")[2].partition("\n")[0]))
            run.sees("ended with signal 9 before it had joined", number)
        run.sees("] process", 4)
        run.signal(signal.SIGTERM)
        assert run.ended() == 143


def test_a_script_that_crashes_before_it_joins_is_given_up(tmp_path: Path) -> None:
    text = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"
    with Launched(tmp_path, "--workers", "1", "--max-restarts", "1", *LIVE, script(tmp_path, text)) as run:
        assert run.ended() == 1
    assert "2 workers in a row ended before they joined" in run.output


def test_a_script_that_never_joins_is_not_run_again_and_again(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1", *LIVE, script(tmp_path, "print('hello')\n")) as run:
        assert run.ended() == 1
    assert run.output.count("] hello") == 1
    assert "had never joined the job: a script for live training calls pliant.join()" in run.output
    assert real(environment(tmp_path), "status", "demo", "--json").json["state"] == "failed"


def test_what_fails_after_the_end_is_told_and_counts(tmp_path: Path) -> None:
    text = (
        "import runpy, sys\nsys.argv[1:] = ['0']\n"
        f"try:\n    runpy.run_path({str(TRAINER)!r}, run_name='__main__')\nfinally:\n    1 / 0\n"
    )
    with Launched(tmp_path, "--workers", "1", script(tmp_path, text)) as run:
        assert run.ended() == 1
    assert "ZeroDivisionError" in run.output
    assert run.lines[-1].startswith("pliant: demo is finished, but after it: ")


def test_a_cancelled_job_ends_the_run(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1", *HELD) as run:
        run.has_members(1)
        assert real(environment(tmp_path), "cancel", "demo", "--why", "a typo").code == 0
        assert run.ended() == 1
    assert run.lines[-1] == "pliant: demo was cancelled: a typo"
    assert family(tmp_path) == {}


def test_a_job_is_run_once_at_a_time(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1:2", "--target", "1", *HELD) as run:
        run.has_members(1)
        second = real(environment(tmp_path), "run", "--job", "demo", "--workers", "1:2", *HELD)
        assert second.code == 3
        assert f"demo runs on this machine already, as process {run.process.pid}" in second.err
        assert "its own PLIANT_HOME and PLIANT_AGENT" in second.err
        assert "To change its number of workers, run `pliant resize demo N`" in second.err
        go(run)
        assert run.ended() == 0


@pytest.mark.long
def test_an_interrupted_job_takes_other_sizes_and_another_target(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1:2", *HELD) as run:
        run.has_members(2)
        run.signal(signal.SIGTERM)
        assert run.ended() == 143
    with Launched(tmp_path, "--workers", "1:4", "--target", "1", "--max-restarts", "9", *HELD) as run:
        run.has_members(1)
        run.sees("settings changed: --workers 1:2 -> 1:4, --max-restarts 3 -> 9")
        go(run)
        assert run.ended() == 0


def test_json_has_one_object_on_each_line(tmp_path: Path) -> None:
    done = real(environment(tmp_path), "run", "--job", "demo", "--workers", "1", "--json", *PACED)
    assert (done.code, done.err) == (0, "")
    said = [json.loads(line) for line in done.out.splitlines()]
    (member,) = {each["worker"] for each in said if "worker" in each}
    assert {"worker": member, "stream": "stdout", "line": f"joined as {member}"} in said
    events = [each["event"] for each in said if "event" in each]
    assert events[0]["type"] == "AgentJoined"
    assert [event["state"] for event in events if event["type"] == "StateChanged"][-1] == "finished"


def test_nobody_reading_ends_the_words_and_not_the_training(tmp_path: Path) -> None:
    command = [PLIANT, "run", "--job", "demo", "--workers", "1", *PACED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(tmp_path)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0
    assert real(environment(tmp_path), "status", "demo", "--json").json["state"] == "finished"


def test_lines_are_whole_and_long_ones_cut(tmp_path: Path) -> None:
    text = (
        "import os, sys, threading\n"
        "if os.environ['PLIANT_MEMBER'].endswith('.1'):\n"
        "    sys.stdout.write('x' * 5000 + '\\n' + '10%\\r20%\\rall\\n' + 'no end')\n"
        "elif os.environ['PLIANT_MEMBER'].endswith('.2'):\n"
        "    for _ in range(300): sys.stdout.write('a'); sys.stdout.write('b\\n')\n"
        "sys.exit(3)\n"
    )
    with Launched(tmp_path, "--workers", "2", "--max-restarts", "1", *LIVE, script(tmp_path, text)) as run:
        assert run.ended() == 1
    words = [line.partition("] ")[2] for line in run.lines if "." in line.partition("]")[0]]
    assert words.count("ab") == 300
    assert "x" * 4000 + " ... (1000 more characters in the log)" in words
    assert {"all", "no end"} < set(words)
    (log,) = (run.folder / "logs").glob("*.1.log")
    assert log.read_bytes() == b"x" * 5000 + b"\nall\nno end\n"  # of a bar, its last state


def test_workers_find_what_they_need_in_their_environment(tmp_path: Path) -> None:
    said = "[dict(os.environ), sys.argv, os.getpgrp() == os.getpid()]"
    text = f"import json, os, sys\nprint(json.dumps({said}))\nsys.exit(3)"
    path = script(tmp_path, text)
    flags = ("--workers", "1", "--max-restarts", "0", "--grace-s", "5", *LIVE)
    with Launched(tmp_path, *flags, path, "--lr", "1", "-x") as run:
        assert run.ended() == 1
    (said,) = (line.partition("] ")[2] for line in run.lines if line.startswith("[") and '"PLIANT_JOB"' in line)
    env, argv, own_group = json.loads(said)
    assert argv == [path, "--lr", "1", "-x"]
    assert own_group
    assert env["PLIANT_JOB"] == "demo"
    assert env["PLIANT_MEMBER"].startswith(env["PLIANT_AGENT"] + "-")
    assert env["PLIANT_COORDINATOR"].startswith("http://127.0.0.1:")
    assert int(env["PLIANT_COORDINATOR"].rpartition(":")[2]) < 32768
    assert (env["PLIANT_GRACE_S"], env["OMP_NUM_THREADS"]) == ("5", os.environ.get("OMP_NUM_THREADS") or "1")
    assert Path(env["PLIANT_CHECKPOINT_DIR"]).is_dir()
    token = Path(env["PLIANT_TOKEN_FILE"])
    assert token.stat().st_mode & 0o777 == 0o600
    secret = token.read_text().strip()
    assert secret not in json.dumps(env)
    assert "RANK" not in env
    for file in (tmp_path / "jobs").rglob("*"):
        if file.is_file() and "token" not in file.name:
            assert secret.rpartition("_")[2].encode() not in file.read_bytes(), file


def test_a_module_is_run_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys\nprint('module', sys.argv[1:])\nsys.exit(3)\n")
    args = ("--workers", "1", "--max-restarts", "0", "-m", "mine", "--a")
    with Launched(tmp_path, *args, PYTHONPATH=str(tmp_path)) as run:
        assert run.ended() == 1
    assert "] module ['--a']" in run.output


def test_a_coordinator_that_is_there_already_is_joined(tmp_path: Path) -> None:
    with start(home=tmp_path / "coordinator") as coordinator:
        token = str(coordinator.home / "token")
        args = ("--workers", "1:2", "--coordinator", coordinator.url, "--token-file", token)
        with Launched(tmp_path / "home", *args, *PACED) as run:
            assert run.ended() == 0
        assert coordinator.client().job("demo").job.state.value == "finished"
        assert not (run.folder / "store.db").exists()
    assert family(tmp_path / "home") == {}
