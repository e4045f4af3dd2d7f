"""The scripts and their command lines. They are in `tests/e2e/scripts` and do not use Pliant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "e2e" / "scripts"


@dataclass(frozen=True)
class Case:
    """One script. `args` are its own, for a training of some 300 steps; `first` and `second` are what agents add."""

    name: str
    packages: tuple[str, ...]
    args: tuple[str, ...]
    first: int = 2  # workers of the first agent
    second: int = 1
    env: str = "torch"
    roles: str = ""  # TensorFlow's, other than workers
    refilled: bool = False  # whether one worker alone is replaced, and the others stay
    machines: bool = False  # whether sizes are told as torchrun has them: by machines of the same size
    folder: Path = FOLDER

    @property
    def script(self) -> Path:
        return self.folder / f"{self.name}.py"

    @property
    def others(self) -> int:
        """Return how many of the first agent's are no workers in TensorFlow's sense."""
        return sum(int(part.partition(":")[2]) for part in self.roles.split(",") if part)

    @property
    def worlds(self) -> tuple[int, int]:
        """Return what scripts say of the size, with one agent and with both."""
        return self.first - self.others, self.first - self.others + self.second

    def options(self, capacity: int) -> tuple[str, ...]:
        """Return what `pliant run` is told of the job, by an agent with so much room."""
        sizes = ("--nnodes", "1:2") if self.machines else ("--workers", f"{self.first}:{self.first + self.second}")
        kind = () if self.env == "torch" else ("--env", self.env)
        roles = ("--role", self.roles) if self.roles else ()
        return (*sizes, "--nproc-per-node", str(capacity), *kind, *roles)


DDP = ("--epochs", "75", "--samples", "256", "--snapshot", "snapshot.pt")
STEPS = ("--steps", "300", "--save-every", "10")

CASES = (
    Case("ddp", ("torch",), DDP, second=2, machines=True),
    Case("imagenet", ("torch",), ("--epochs", "40")),
    Case("hf_trainer", ("transformers",), ("--steps", "300", "--save-steps", "10")),
    Case("hf_accelerate", ("accelerate",), STEPS),
    Case("lightning_fit", ("lightning",), STEPS, second=2, machines=True),  # it wants as many workers on each machine
    Case("keras_fit", ("tensorflow", "tf_keras"), ("--epochs", "60"), env="tf"),
    Case("tf_ps", ("tensorflow",), ("--steps", "600", "--save-every", "10"), 4, 1, "tf", "chief:1,ps:1", refilled=True),
    Case("jax_pmap", ("jax",), STEPS, env="jax"),
)
