"""Tables on parameter servers in JAX and Keras: the same losses and rows as numpy computes."""

import importlib.util
import os
import subprocess
import sys

import pytest

from frames.conftest import QUIET
from frames.table_model import BIAS, IDS, KERNEL, LABELS, STEPS, StaleOnce, expected, require_equal
from tidy.files import ROOT

TIMEOUT_S = 300


@pytest.mark.timeout(TIMEOUT_S)
def test_a_jax_step_trains_the_rows_and_the_dense_parameters() -> None:
    jax = pytest.importorskip("jax", reason="run make frameworks")
    from pliant.jax.tables import JaxTableStep, ServerParams

    traces = []

    def loss(params, rows, labels):  # type: ignore[no-untyped-def]
        traces.append(1)
        features = rows["ads"].reshape(len(labels), -1)
        return ((features @ params["kernel"] + params["bias"] - labels) ** 2).mean()

    run = StaleOnce()
    dense = ServerParams(run, "deep", {"kernel": KERNEL, "bias": BIAS}, 4)
    step = JaxTableStep(run, loss, dense)
    require_equal([float(step({"ads": IDS}, LABELS)) for _ in range(STEPS)], run)
    assert len(traces) == 1, "batches of one size are compiled once"
    assert float(step.evaluate({"ads": IDS}, LABELS)) < expected()[0][-1]
    assert jax.tree.map(lambda each: each.shape, dense.pull()) == {"bias": (1,), "kernel": (6, 1)}


@pytest.mark.timeout(TIMEOUT_S)
def test_a_jax_step_without_dense_parameters_returns_what_its_loss_returns() -> None:
    pytest.importorskip("jax", reason="run make frameworks")
    from pliant.jax.tables import JaxTableStep

    step = JaxTableStep(StaleOnce(), lambda _, rows: (rows["ads"].sum(), rows["ads"].shape[0]), has_aux=True)
    assert int(step({"ads": IDS})[1]) == len(IDS)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("framework", ["jax", "tensorflow", "torch"])
def test_a_keras_model_trains_the_rows_and_its_variables(framework: str) -> None:
    for package in ("keras", framework):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: run make frameworks")
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, **QUIET, "KERAS_BACKEND": framework, "PYTHONPATH": path}
    command = [sys.executable, "-m", "frames.keras_tables"]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.stdout.strip() == "equal", done.stderr[-2000:]
