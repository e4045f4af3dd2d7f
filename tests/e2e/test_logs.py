"""`pliant logs`, of jobs that run and of those that have ended."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from e2e.launched import TRAINER, Launched
from e2e.running import wait_for
from pliant.agent.logs.rotate import older
from unit.cli.program import PLIANT, Done, environment, real

PACED = (str(TRAINER), "0.02")
HELD = (str(TRAINER), "go")  # no step before `go` is called


def go(run: Launched) -> None:
    (run.folder / "checkpoints" / "go").touch()


class Follower:
    """A `pliant logs --follow` in the background."""

    def __init__(self, home: Path, *args: str) -> None:
        self.out = home / f"followed-{len([*home.glob('followed-*.out')])}.out"
        self.err = self.out.with_suffix(".err")
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [PLIANT, "logs", "demo", "--follow", *args], stdout=out, stderr=err, env=environment(home)
            )

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def text(self) -> str:
        return self.out.read_text()

    def sees(self, text: str) -> None:
        wait_for(lambda: text in self.text or self.process.poll() is not None, text, 60.0)
        assert text in self.text

    def ends(self) -> int:
        return self.process.wait(60.0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    """A job of two workers that came to its end."""
    with Launched(tmp_path_factory.mktemp("home"), "--workers", "2:2", *PACED) as run:
        assert run.ended() == 0
    return run


def logs(run: Launched, *args: str) -> Done:
    return real(environment(run.home), "logs", "demo", *args)


def members(run: Launched) -> list[str]:
    return sorted(path.stem for path in (run.folder / "logs").glob("*-*.log"))


def test_everything_that_was_written_is_shown_as_it_was_when_it_ran(finished: Launched) -> None:
    done = logs(finished)
    assert (done.code, done.err) == (0, "")
    names = members(finished)
    assert len(names) == 2
    assert sorted(done.out.splitlines()) == sorted(
        line for line in finished.lines if line.startswith("[" + names[0][:-1])
    )
    for name in names:
        text = (finished.folder / "logs" / f"{name}.log").read_text()
        assert [line.removeprefix(f"[{name}] ") for line in done.out.splitlines() if name in line.split()[0]] == (
            text.splitlines()
        )


def test_the_last_lines_of_each_worker(finished: Launched) -> None:
    done = logs(finished, "--tail", "1", "--json")
    said = [json.loads(line) for line in done.out.splitlines()]
    assert sorted(each["worker"] for each in said) == members(finished)
    for each in said:
        text = (finished.folder / "logs" / f"{each['worker']}.log").read_text()
        assert each["line"] == text.splitlines()[-1]


def test_a_rank_of_a_job_that_has_ended_is_who_had_it_last(finished: Launched) -> None:
    first, second = (logs(finished, "--rank", str(rank)) for rank in (0, 1))
    shown = {done.out.split("]")[0].removeprefix("[") for done in (first, second)}
    assert sorted(shown) == members(finished)
    assert "is durable at" in first.out  # rank 0 commits
    assert "is durable at" not in second.out
    none = logs(finished, "--rank", "2")
    assert (none.code, none.out) == (2, "")
    assert none.err == "pliant: No worker of demo has ever had rank 2: the largest world had 2 workers.\n"


def test_to_follow_what_has_ended_is_to_show_its_end(finished: Launched) -> None:
    done = logs(finished, "--follow", "--tail", "2")
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) == 3  # one of them wrote one line alone
    assert "step 20 is durable at" in done.out


def test_who_has_seen_enough_may_close_the_pipe(finished: Launched) -> None:
    process = subprocess.Popen(
        [PLIANT, "logs", "demo"],
        env=environment(finished.home, PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr as errors:
        assert errors.read() == b""
    assert process.wait(60) == 0


def test_a_job_that_is_not_known_is_refused(tmp_path: Path, finished: Launched) -> None:
    done = real(environment(tmp_path), "logs", "demo")
    assert (done.code, done.out) == (3, "")
    assert "no job 'demo'; there are no jobs here" in done.err
    bad = real(environment(tmp_path), "logs", "../demo")
    assert bad.code == 2
    assert "Invalid job name" in bad.err


def test_logs_that_lie_elsewhere_or_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / "demo"
    folder.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "vm-1.0.log").write_text("hello\n")
    (folder / "logs-at").write_text(f"{tmp_path / 'elsewhere'}\n")
    done = real(environment(tmp_path), "logs", "demo")
    assert (done.code, done.out) == (0, "[vm-1.0] hello\n")
    assert "Showing the logs of this machine anyway." in done.err  # the coordinator does not know the job
    (folder / "logs-at").write_text(os.devnull)
    none = real(environment(tmp_path), "logs", "demo")
    assert (none.code, none.out) == (0, "")
    assert "Job demo writes no logs: it was started with --log-dir /dev/null." in none.err
    followed = real(environment(tmp_path), "logs", "demo", "--follow")
    assert followed.code == 2  # there is no coordinator to ask when it ends


def test_a_job_is_followed_to_its_end_with_workers_that_come_later(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1:2", "--target", "1", *HELD) as run:
        (first,) = run.has_members(1)
        with Follower(tmp_path) as all_ranks, Follower(tmp_path, "--rank", "0", "--json") as rank_0:
            all_ranks.sees(f"[{first}] joined as {first}")
            rank_0.sees(f'{{"worker":"{first}","line":"joined as {first}"}}')
            assert real(environment(tmp_path), "resize", "demo", "2").code == 0
            second = next(iter({*run.has_members(2)} - {first}))
            all_ranks.sees(f"[{second}] joined as {second}")
            go(run)
            assert run.ended() == 0
            assert (all_ranks.ends(), rank_0.ends()) == (0, 0)
    said = [json.loads(line) for line in rank_0.text.splitlines()]
    assert {each["worker"] for each in said} == {first}
    assert [each["line"] for each in said][-1].startswith("step 20 is durable")
    shown = sorted(line for line in all_ranks.text.splitlines())
    assert shown == sorted(line for line in run.lines if line.startswith((f"[{first}]", f"[{second}]")))


def test_followed_through_rotation_a_killed_coordinator_and_ctrl_c(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1:1", *HELD) as run:
        (member,) = run.has_members(1)
        path = run.folder / "logs" / f"{member}.log"
        with Follower(tmp_path) as follower:
            follower.sees("joined as")
            path.rename(older(path))  # as the agent does with one that is too large
            path.write_text("written by the next\n")
            follower.sees(f"[{member}] written by the next")
            os.kill(run.endpoint["pid"], signal.SIGKILL)
            run.sees("the coordinator ended with signal 9")
            with path.open("a") as file:
                file.write("written meanwhile\n")
            follower.sees(f"[{member}] written meanwhile")
            assert follower.process.poll() is None
            follower.process.send_signal(signal.SIGINT)
            assert follower.ends() == 130
        with Follower(tmp_path) as late:
            late.sees("written meanwhile")
            run.signal(signal.SIGTERM)
            run.signal(signal.SIGTERM)
            assert run.ended() == 143
            assert late.ends() == 0
    assert "Traceback" not in follower.err.read_text()
    assert late.err.read_text().endswith("pliant: demo no longer runs on this machine. Resume it with `pliant run`.\n")
    asleep = real(environment(tmp_path), "logs", "demo", "--follow")
    assert asleep.code == 0
    assert asleep.err == "pliant: demo no longer runs on this machine. Resume it with `pliant run`.\n"


def test_workers_on_other_machines_are_named(tmp_path: Path) -> None:
    """Another home stands for another machine."""
    with Launched(tmp_path, "--workers", "1:1", *HELD) as run:
        (member,) = run.has_members(1)
        other = tmp_path / "other"
        other.mkdir(mode=0o700)
        env = environment(other, PLIANT_COORDINATOR=run.endpoint["url"], PLIANT_TOKEN_FILE=run.endpoint["token_file"])
        done = real(env, "logs", "demo")
        agent = member.rpartition("-")[0]
        assert (done.code, done.out) == (0, "")
        assert "No worker of demo has written yet" in done.err
        assert f"The logs of workers on {agent} are on those machines." in done.err
        rank = real(env, "logs", "demo", "--rank", "0")
        assert rank.code == 2
        assert f"Rank 0 is {member} on {agent}. Its log is not on this machine; run the command there." in rank.err


RELAUNCHED = """
import os, pathlib, select, sys
print("rank", os.environ["RANK"], "is", os.environ["PLIANT_MEMBER"], flush=True)
here = pathlib.Path(__file__).parent
(here / os.environ["PLIANT_MEMBER"]).touch()
while len([*here.glob("*-g1.*")]) < 2:  # the first failure stops the other worker
    select.select([], [], [], 0.01)
sys.exit(0 if "-g1." not in os.environ["PLIANT_MEMBER"] else 3)
"""


def test_of_a_script_that_was_relaunched_a_rank_is_its_last_member(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(RELAUNCHED)
    with Launched(tmp_path, "--workers", "2:2", "--mode", "relaunch", str(script)) as run:
        assert run.ended() == 0
    done = real(environment(tmp_path), "logs", "demo", "--rank", "1", "--json")
    assert (done.code, done.err) == (0, "")
    said = done.json
    assert said["worker"].endswith("-g2.1")
    assert said["line"] == f"rank 1 is {said['worker']}"
    everything = real(environment(tmp_path), "logs", "demo").out
    assert {line.split("]")[0].rpartition("-")[2] for line in everything.splitlines()} == {
        "g1.0",
        "g1.1",
        "g2.0",
        "g2.1",
    }
