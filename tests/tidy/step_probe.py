"""Train a small model under `pliant run` and report the source files on the path of one step, as JSON.

`tidy.measure` starts it with the source of any checkout, so it uses nothing but the public interface. The training
thread of each worker counts Python calls from the end of one step to the end of the next. The cheapest step is the
steady state: no checkpoint, no change of membership.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import torch
import torch.nn.functional as F

import pliant.torch as pliant

STEPS = range(20, 40)  # both workers train by then
SOURCE = Path(pliant.__file__).parents[1]


def main() -> None:
    """Train, and write what this worker counted into the folder that is named."""
    data = torch.utils.data.TensorDataset(torch.rand(512, 4), torch.rand(512, 1))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps: list[Counter[str]] = []

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(SOURCE):
            steps[-1][frame.f_code.co_filename] += 1

    with pliant.join() as job:
        run = job.train(model, optimizer, data, batch_size=8, epochs=1, seed=1)
        for number, (x, y) in enumerate(run):
            F.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
            run.step()
            if number in STEPS:
                steps.append(Counter())
                sys.setprofile(count)
            elif number == STEPS.stop:
                sys.setprofile(None)
    files = min(steps, key=lambda step: (len(step), step.total()))
    found = {"files": sorted(Path(name).relative_to(SOURCE).as_posix() for name in files), "calls": files.total()}
    Path(sys.argv[1], f"{job.member}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
