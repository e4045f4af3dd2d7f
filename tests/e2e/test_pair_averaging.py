"""Pair averaging under `pliant run`: workers with a model each, one of which is killed, and one that comes later."""

import json
from pathlib import Path

import pytest

from e2e.launched import Launched, kill
from e2e.running import wait_for
from unit.cli.program import environment, real

# A linear model of four numbers is fitted to exact data, so all models approach the same one. Each worker appends the
# numbers of the records that it trained on. While there is a file out.hold, no worker trains beyond its first batch of
# the second epoch.
SCRIPT = """
import json, os, sys, time
import numpy as np
import pliant.tasks

out, records = sys.argv[1], int(sys.argv[2])
true = np.arange(1.0, 5.0, dtype=np.float32)
data = np.random.default_rng(0).normal(size=(records, 4)).astype(np.float32)
model = np.random.default_rng(os.getpid()).normal(size=4).astype(np.float32)
with pliant.tasks.join() as job:
    run = job.train(data, batch_size=5, records_per_shard=20, epochs=2, average=[model], save_every_s=0.5,
                    deadline_s=60.0)
    with open(os.path.join(out, job.member), "a", buffering=1) as file:
        for batch in run:
            x = np.stack(batch)
            model -= 0.05 * x.T @ (x @ model - x @ true) / len(x)
            run.average()
            file.write(f"{run.epoch} {run.numbers[0]} {run.numbers[-1]}\\n")
            time.sleep(0.02)
            while run.epoch and os.path.exists(out + ".hold"):
                time.sleep(0.02)
with open(out + "." + job.member, "w") as file:
    json.dump([float(each) for each in model], file)
"""


class Fitting:
    """A script in a folder, and what its workers did."""

    def __init__(self, folder: Path, records: int) -> None:
        self.script, self.out, self.records = folder / "fit.py", folder / "out", records
        self.script.write_text(SCRIPT)
        self.out.mkdir()
        self.hold = folder / "out.hold"
        self.arguments = (str(self.script), str(self.out), str(records))

    def processed(self) -> list[tuple[int, int]]:
        """Return (epoch, record) as often as a worker trained on it."""
        found = []
        for file in self.out.iterdir():
            for line in file.read_text().splitlines():
                epoch, first, last = map(int, line.split())
                found += [(epoch, record) for record in range(first, last + 1)]
        return found

    def every(self) -> set[tuple[int, int]]:
        return {(epoch, record) for epoch in range(2) for record in range(self.records)}

    def models(self) -> list[list[float]]:
        """Return the final model of each worker that saw the end."""
        return [json.loads(file.read_text()) for file in self.out.parent.glob("out.*") if file != self.hold]


def saves(home: Path) -> int:
    return sum("saved the mean" in line for line in real(environment(home), "events", "demo").out.splitlines())


@pytest.mark.timeout(240)
def test_records_are_trained_on_at_least_once_while_workers_are_killed_and_come(tmp_path: Path) -> None:
    fitting = Fitting(tmp_path, 1000)
    fitting.hold.touch()
    env = environment(tmp_path)
    with Launched(tmp_path, "--workers", "1:3", "--target", "2", "--mode", "tasks", *fitting.arguments) as run:
        run.has_members(2)
        assert real(env, "resize", "demo", "3").code == 0
        before = run.has_members(3)
        wait_for(lambda: saves(tmp_path) >= 2, "two saves", 60)
        victim = sorted(before)[0]  # it saves the means
        kill(before[victim])
        wait_for(lambda: len(found := run.members()) == 3 and victim not in found, "its replacement", 60)
        fitting.hold.unlink()
        assert run.ended() == 0
    assert {*fitting.processed()} == fitting.every()
    found = real(env, "audit", "demo", "--json").json
    assert (found["ok"], found["records"], found["pair_averaging"]) == (True, 2000, True)
    assert len(fitting.processed()) - len(fitting.every()) <= found["repeated_max"]
    told = real(env, "audit", "demo").out
    assert "demo: pair averaging, every record at least once" in told
    assert "before a mean of the models had their effect" in told
    assert "exactly once" not in told
    report = real(env, "report", "demo").out
    assert "pair averaging, every record at least once" in report
    assert "exactly once" not in report
    models = fitting.models()
    assert len(models) == 3
    assert all(model == models[0] for model in models), "each worker ends with the same mean"
    assert models[0] == pytest.approx([1.0, 2.0, 3.0, 4.0], abs=0.05)


@pytest.mark.timeout(240)
def test_a_job_continues_from_its_newest_mean_when_all_workers_were_lost(tmp_path: Path) -> None:
    fitting = Fitting(tmp_path, 600)
    fitting.hold.touch()
    with Launched(tmp_path, "--workers", "1:2", "--mode", "tasks", *fitting.arguments) as run:
        run.has_members(2)
        wait_for(lambda: saves(tmp_path) >= 3, "three saves", 60)
        assert real(environment(tmp_path), "cancel", "demo").code == 0
        run.ended()
    fitting.hold.unlink()
    with Launched(tmp_path, "--workers", "1:2", "--mode", "tasks", *fitting.arguments) as run:
        assert run.ended() == 0
    assert {*fitting.processed()} == fitting.every()
    assert real(environment(tmp_path), "audit", "demo", "--json").json["ok"]
    models = fitting.models()
    assert all(model == models[0] for model in models)
    assert models[0] == pytest.approx([1.0, 2.0, 3.0, 4.0], abs=0.05)
