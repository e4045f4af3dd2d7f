"""Parameter servers under `pliant run --ps`: workers and servers that are killed, and a job that is started again."""

import math
import re
import signal
from pathlib import Path

import pytest

from e2e.launched import Launched, kill
from e2e.running import wait_for
from pliant.core.supervisor.state import is_server
from unit.cli.program import environment, real

EXAMPLE = Path(__file__).parents[2] / "examples" / "wide_and_deep.py"

# Every batch adds 1 to a row of its own, so that the table shows which batches were pushed, and how often.
COUNTING = """
import os, sys, time
import numpy as np
import pliant.tasks
from pliant.ps import SGD, Table

hold = sys.argv[1]
with pliant.tasks.join() as job:
    run = job.train(range(1000), batch_size=5, records_per_shard=50, evaluation=range(1000),
                    tables=[Table("counts", 1, SGD(1.0), scale=0.0)])
    for batch in run:
        if run.evaluating:
            counts = run.pull("counts", batch)
            run.add(missing=(counts < 1).sum(), repeated=(counts > 1).sum())
            continue
        run.push({"counts": (batch, np.full((len(batch), 1), -1.0))})
        while batch[0] % 50 == 20 and os.path.exists(hold):
            time.sleep(0.01)
"""


def processes(run: Launched, *, servers: bool) -> dict[str, int]:
    return {name: pid for name, pid in run.members().items() if is_server(name) is servers}  # type: ignore[arg-type]


def has_two_copies(run: Launched) -> bool:
    """Return whether the newest layout has a backup of every bucket."""
    layouts = [line for line in run.lines if "layout " in line and "parameter servers" in line]
    return bool(layouts) and "no backup" not in layouts[-1] and "being copied" not in layouts[-1]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_acknowledged_push_is_lost_when_a_server_and_a_worker_are_killed(tmp_path: Path) -> None:
    script, hold = tmp_path / "count.py", tmp_path / "hold"
    script.write_text(COUNTING)
    hold.touch()
    with Launched(tmp_path, "--workers", "1:2", "--target", "2", "--ps", "2", str(script), str(hold)) as run:
        wait_for(lambda: len(processes(run, servers=False)) == 2, "two workers", 120)
        wait_for(lambda: has_two_copies(run), "two copies of every bucket", 120)
        victim, pid = sorted(processes(run, servers=True).items())[0]
        kill(pid)
        wait_for(lambda: victim not in run.members() and len(processes(run, servers=True)) == 2, "its replacement", 120)
        wait_for(lambda: has_two_copies(run), "two copies of every bucket again", 120)
        kill(sorted(processes(run, servers=False).values())[0])
        hold.unlink()
        assert run.process.wait(200) == 0
    env = environment(tmp_path)
    found = real(env, "audit", "demo", "--json").json
    assert found["ok"]
    assert (found["records"], found["shards_missing"]) == (1000, 0)
    (told,) = [line for line in real(env, "events", "demo").out.splitlines() if "evaluation 0 is done" in line]
    missing, repeated = (float(re.search(rf"{name} ([\d.e-]+)", told)[1]) for name in ("missing", "repeated"))  # type: ignore[index]
    assert missing == 0, "every acknowledged push is in the table"
    assert repeated * 1000 <= found["repeated_max"]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_example_learns_through_a_kill_as_well_as_without(tmp_path: Path) -> None:
    def loss(run: Launched, name: str) -> float:
        assert run.process.wait(200) == 0
        told = real(environment(run.home), "events", name).out
        return float(re.findall(r"evaluation 0 is done: 2000 records, loss ([\d.]+)", told)[-1])

    arguments = ("--workers", "1:2", "--target", "2", "--ps", "2", str(EXAMPLE), "--records", "6000")
    with Launched(tmp_path / "calm", *arguments, OMP_NUM_THREADS="1") as run:
        calm = loss(run, "demo")
    with Launched(tmp_path / "killed", *arguments, OMP_NUM_THREADS="1") as run:
        wait_for(lambda: any("took train shard" in line for line in run.lines), "work", 120)
        wait_for(lambda: has_two_copies(run), "two copies", 120)
        kill(sorted(processes(run, servers=True).values())[-1])
        killed = loss(run, "demo")
    assert calm < math.log(2), "it learns"
    assert killed == pytest.approx(calm, abs=0.05)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_no_acknowledged_push_is_lost_when_all_servers_leave_and_the_job_goes_on_later(tmp_path: Path) -> None:
    script, hold = tmp_path / "count.py", tmp_path / "hold"
    script.write_text(COUNTING)
    hold.touch()
    arguments = ("--workers", "1", "--ps", "3", str(script), str(hold))
    with Launched(tmp_path, *arguments) as run:
        wait_for(lambda: any("joined the task queue" in line for line in run.lines), "a worker", 120)
        wait_for(lambda: len(processes(run, servers=True)) == 3 and has_two_copies(run), "two copies", 120)
        wait_for(lambda: any("processed its records" in line for line in run.lines), "pushes", 120)
        run.signal(signal.SIGINT)
        assert run.process.wait(100) == 128 + signal.SIGINT
    hold.unlink()
    with Launched(tmp_path, *arguments) as run:
        assert run.process.wait(200) == 0
    env = environment(tmp_path)
    (told,) = [line for line in real(env, "events", "demo").out.splitlines() if "evaluation 0 is done" in line]
    assert re.search(r"missing 0\b", told), told
    assert real(env, "audit", "demo", "--json").json["ok"]
