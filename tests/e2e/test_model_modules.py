"""`pliant train`, `evaluate` and `predict` with real workers, which are killed, and servers."""

import json
import os
import signal
from pathlib import Path

import pytest

from e2e.launched import Launched, all_gone, family, kill
from e2e.running import wait_for
from pliant.core.model.view import MemberState
from pliant.core.supervisor.state import is_server
from unit.cli.program import environment, real
from unit.model_modules.zoo import written

# Workers wait in the middle of the data as long as a file is there, so that the test has all the time that it needs.
FEED = """
import os, time
WORKS, HOLD = "PLIANT_MEMBER" in os.environ, __file__ + ".hold"

def feed(records, mode):
    while WORKS and os.path.exists(HOLD) and records[0] % 1000 >= 400:
        time.sleep(0.01)
    features = torch.tensor([[record % 100 / 100] for record in records])
    return features if mode == "predict" else (features, features * 3 + 1)
"""


class Training(Launched):
    """One `pliant train`."""

    verb = "train"

    def command(self) -> tuple[str, ...]:
        return (self.verb, *self.flags, "--job", self.job)


class Evaluation(Training):
    """One `pliant evaluate`."""

    verb = "evaluate"


class Prediction(Training):
    """One `pliant predict`."""

    verb = "predict"


def workers_at_work(run: Launched) -> dict[str, int]:
    """Return the process of each worker that holds a shard."""
    if not run.members():
        return {}
    with run.client() as client:
        found = client.job(run.job).members
    return {x.id: x.pid or 0 for x in found if x.state is MemberState.ACTIVE and not is_server(x.id)}


def kill_one_of_two(run: Launched) -> None:
    wait_for(lambda: len(workers_at_work(run)) == 2 or run.process.poll() is not None, "two at work", 120)
    kill(sorted(workers_at_work(run).items())[0][1])


def test_a_small_module_is_trained_and_nothing_is_left(tmp_path: Path) -> None:
    where = ("--model-def", written(tmp_path), "--data", "400", "--output", str(tmp_path / "models"))
    with Training(tmp_path, *where, "--ps", "1", "--records-per-task", "100", "--batch-size", "50") as run:
        assert run.ended() == 0
        assert "all 4 shards of 1 epoch are done" in run.output
        assert f"the model is saved in {tmp_path}/models/demo" in run.output
    assert family(tmp_path) == {}


@pytest.mark.long
@pytest.mark.timeout(400)
def test_every_record_is_trained_on_evaluated_and_predicted_once_through_kills(tmp_path: Path) -> None:
    module = written(tmp_path, feed=FEED)
    hold, env, models = Path(f"{module}.hold"), environment(tmp_path), tmp_path / "models"
    shared = ("--model-def", module, "--records-per-task", "100", "--batch-size", "20")
    two = ("--workers", "1:2", "--target", "2")
    hold.touch()
    more = ("--data", "1000", "--validation-data", "200", "--epochs", "2", "--output", str(models))
    with Training(tmp_path, *shared, *two, *more) as run:
        kill_one_of_two(run)
        hold.unlink()
        assert run.ended() == 0
        assert run.output.count("is done: 200 records, loss") == 2
    found = real(env, "audit", "demo", "--json").json
    assert (found["ok"], found["records"], found["returned"] >= 1) == (True, 2000, True)

    saved = ("--model", str(models / "demo"))
    with Evaluation(tmp_path, *shared, "--data", "500", *saved, job="judged") as run:
        assert run.ended() == 0
        assert "evaluation 0 is done: 500 records, loss 0.0" in run.output

    hold.touch()
    output = tmp_path / "predictions"
    with Prediction(tmp_path, *shared, *two, "--data", "1000", *saved, "--output", str(output), job="said") as run:
        kill_one_of_two(run)
        hold.unlink()
        assert run.ended() == 0
    lines = [json.loads(line) for file in sorted(output.glob("*.jsonl")) for line in file.read_text().splitlines()]
    assert [line["record"] for line in lines] == list(range(1000))
    found = real(env, "audit", "said", "--json").json
    assert (found["ok"], found["records"], found["returned"] >= 1) == (True, 1000, True)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ctrl_c_ends_a_training_leaves_nothing_behind_and_the_same_command_goes_on(tmp_path: Path) -> None:
    module = written(tmp_path, feed=FEED)
    hold = Path(f"{module}.hold")
    hold.touch()
    where = ("--model-def", module, "--data", "1000", "--output", str(tmp_path / "models"), "--records-per-task", "100")
    with Training(tmp_path, *where, "--workers", "1:2", "--target", "2", "--grace-s", "2") as run:
        wait_for(lambda: len(workers_at_work(run)) == 2, "two at work", 120)
        everyone = family(tmp_path)
        os.kill(run.process.pid, signal.SIGINT)
        assert run.ended() == 130
        all_gone(everyone, tmp_path)
    hold.unlink()
    with Training(tmp_path, *where, "--workers", "1:2", "--target", "2") as run:
        assert run.ended() == 0
    found = real(environment(tmp_path), "audit", "demo", "--json").json
    assert (found["ok"], found["records"], found["shards_missing"]) == (True, 1000, 0)
