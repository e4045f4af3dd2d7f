"""Model modules in Keras: their steps on each framework, and the commands with real workers and servers."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.test_model_modules import Evaluation, Prediction, Training, kill_one_of_two
from frames.conftest import QUIET
from tidy.files import ROOT
from unit.cli.program import environment, real
from unit.model_modules.zoo import written

KERAS = {
    "header": "import os, time\nimport keras\nimport numpy as np\nfrom pliant.ps import SGD\n",
    "custom_model": """
def custom_model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
""",
    "loss": "def loss(labels, outputs):\n    return keras.losses.mean_squared_error(labels, outputs)\n",
    "feed": """
WORKS, HOLD = "PLIANT_MEMBER" in os.environ, __file__ + ".hold"

def feed(records, mode):
    while WORKS and os.path.exists(HOLD) and records[0] % 1000 >= 400:
        time.sleep(0.01)
    features = np.asarray([[record % 100 / 100] for record in records], "float32")
    return features if mode == "predict" else (features, features * 3 + 1)
""",
}


def settings_of(framework: str) -> dict[str, str]:
    for package in ("keras", framework):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: run make frameworks")
    return {**QUIET, "KERAS_BACKEND": framework}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("framework", ["jax", "tensorflow", "torch"])
def test_a_keras_model_is_trained_evaluated_and_predicts(framework: str) -> None:
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, **settings_of(framework), "PYTHONPATH": path}
    command = [sys.executable, "-m", "frames.keras_modules"]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == "ok", done.stderr[-2000:]


@pytest.mark.timeout(600)
def test_the_commands_train_evaluate_and_predict_with_keras_through_a_kill(tmp_path: Path) -> None:
    settings = settings_of("tensorflow")
    module, models, output = written(tmp_path, **KERAS), tmp_path / "models", tmp_path / "predictions"
    shared = ("--model-def", module, "--records-per-task", "100", "--batch-size", "20")
    hold = Path(f"{module}.hold")
    hold.touch()
    two = ("--workers", "1:2", "--target", "2")
    data = ("--data", "1000", "--epochs", "4", "--output", str(models))
    with Training(tmp_path, *shared, *two, *data, **settings) as run:
        kill_one_of_two(run)
        hold.unlink()
        assert run.ended() == 0
    found = real(environment(tmp_path), "audit", "demo", "--json").json
    assert (found["ok"], found["records"], found["returned"] >= 1) == (True, 4000, True)
    saved = ("--model", str(models / "demo"))
    with Evaluation(tmp_path, *shared, "--data", "100", *saved, job="judged", **settings) as run:
        assert run.ended() == 0
        assert "evaluation 0 is done: 100 records, loss 0.0" in run.output
    more = ("--data", "100", *saved, "--output", str(output))
    with Prediction(tmp_path, *shared, *more, job="said", **settings) as run:
        assert run.ended() == 0
    lines = [json.loads(line) for file in sorted(output.glob("*.jsonl")) for line in file.read_text().splitlines()]
    assert [line["record"] for line in lines] == list(range(100))
    assert lines[50]["prediction"][0] == pytest.approx(2.5, abs=0.3)
