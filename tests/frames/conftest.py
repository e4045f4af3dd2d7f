"""One fork server for all tests in a process, as in tests/live."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from live.crowd import ForkServer


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    found = ForkServer(tmp_path_factory.mktemp("fork_server") / "log.txt", "frames.fake_scenes")
    yield found
    found.close()


# By the name of a framework: the module of its scenes, the packages that it needs, and settings of its environment.
FRAMEWORKS = {
    "fake": ("frames.fake_scenes", (), {}),
    "jax": ("frames.jax_scenes", ("jax", "optax"), {}),
    "keras-jax": ("frames.keras_scenes", ("keras", "jax"), {"KERAS_BACKEND": "jax"}),
    "keras-tensorflow": ("frames.keras_scenes", ("keras", "tensorflow"), {"KERAS_BACKEND": "tensorflow"}),
    "keras-torch": ("frames.keras_scenes", ("keras", "torch"), {"KERAS_BACKEND": "torch"}),
    "tensorflow": ("frames.tensorflow_scenes", ("tensorflow",), {"KERAS_BACKEND": "tensorflow"}),
}
QUIET = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}


@pytest.fixture(scope="session", params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    """Return each framework in turn that is installed; `make frameworks` installs all of them."""
    name = str(request.param)
    for package in FRAMEWORKS[name][1]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: run make frameworks")
    return name


@pytest.fixture(scope="session")
def members(framework: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Return the fork server of a framework."""
    scenes, _, settings = FRAMEWORKS[framework]
    found = ForkServer(tmp_path_factory.mktemp("fork_server") / "log.txt", scenes, **QUIET, **settings)
    yield found
    found.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path
