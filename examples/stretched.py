"""Run a training script unchanged, record the time of each applied step, and stretch the steps on demand.

    python examples/stretched.py FOLDER STEPS script.py [ARGS ...]

Every process writes FOLDER/PID.steps. While FOLDER/slow exists, each step takes longer by the number of seconds
in it, as with a larger model. In the last third of STEPS the delay grows, so that training does not end too early.
"""

import os
import runpy
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    sys.argv = sys.argv[3:]
    file = (folder / f"{os.getpid()}.steps").open("a", buffering=1)

    def applied(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        step = int(next(iter(optimizer.state.values()))["step"])  # the optimizer's own count is part of the state
        file.write(f"{step} {time.monotonic()}\n")
        with suppress(FileNotFoundError):
            stretch_s = float((folder / "slow").read_text(encoding="ascii"))
            time.sleep(stretch_s * max(1.0, steps / 3 / max(steps - step, 1)) ** 2)  # a longer step is the purpose

    register_optimizer_step_post_hook(applied)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
