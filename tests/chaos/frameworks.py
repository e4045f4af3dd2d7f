"""The frameworks that chaos jobs train with: the script of each, its modules and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
QUIET = {"CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True)
class Framework:
    """A script, the modules that a template imports for it (None: the usual ones), and settings."""

    script: Path
    preload: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def options(self) -> tuple[str, ...]:
        """Return the options of `pliant run`."""
        return ("--preload", self.preload) if self.preload is not None else ()


FRAMEWORKS = {
    "torch": Framework(HERE / "training.py"),
    "jax": Framework(HERE / "jax_training.py", "jax,optax,pliant.jax", {**QUIET, "JAX_PLATFORMS": "cpu"}),
    "keras": Framework(
        HERE / "keras_training.py",
        "keras,tensorflow,pliant.keras",
        {**QUIET, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"},
    ),
}
ARRAYS = ("jax", "keras")  # those of the environment that `make frameworks` builds
