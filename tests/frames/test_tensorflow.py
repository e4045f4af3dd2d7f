"""TensorFlow alone: the seed of its eager random operations, and the kernels of traced functions."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from frames.conftest import QUIET
from tidy.files import ROOT

TIMEOUT_S = 300


@pytest.mark.timeout(TIMEOUT_S)
def test_items_keep_the_kernels_of_traced_functions_and_a_repeated_seed_repeats_eager_draws() -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed: run make frameworks")
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, **QUIET, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": path}
    command = [sys.executable, "-m", "frames.tensorflow_seeds"]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["items"]) > 8
    assert len(set(found["items"])) == len(found["items"]), "a kernel was dropped between two items"
    five, six, five_again = found["eager"]
    assert five == five_again != six
    assert len(set(five)) == 2
    assert len(set(found["without_draws"])) == len(found["without_draws"])
    assert len(set(found["with_draws"])) < len(found["with_draws"]), "the kernels of eager draws are freed"
    assert len(set(found["with_draws"])) > 90
