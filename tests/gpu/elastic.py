"""A worker of `make gpu` that trains through changes: it notes the time of every step and a hash of its weights."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import threading
import time
from pathlib import Path

import torch

import pliant.torch as pliant
from gpu.models import NAMES, Points, build, loss_of, one_tensor, peak_mb, use

END = "end"  # a file of this name in the folder ends the job
SAMPLES = 512


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--pace", type=float, default=0.02, help="seconds to wait after a step")
    parser.add_argument("--model", default="10M", choices=NAMES)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    given = parser.parse_args()
    device = use(given.device)
    model = build(given.model, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    torch.manual_seed(1)
    data = Points(given.model, SAMPLES, device)
    pause = threading.Event()  # never set: a step takes a while
    member = os.environ.get("PLIANT_MEMBER", "alone")
    with pliant.join() as job, (given.folder / f"{member}.steps").open("w") as log:
        run = job.train(
            model,
            optimizer,
            data,
            batch_size=32,
            slots=16,
            epochs=given.steps,
            max_steps=given.steps,
            deterministic=given.deterministic,
            collate_fn=one_tensor,
        )
        for x in run:
            run.backward(loss_of(given.model, model, x))
            if run.step():
                pause.wait(given.pace)
                line = [time.time(), run.step_number, run.size, round(peak_mb(device)), reserved_mb(device)]
                print(json.dumps(line), file=log, flush=True)
                if (given.folder / END).exists():
                    run.finish("the measurement is over")
    whole = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()
    (given.folder / f"{member}.done").write_text(json.dumps({"hash": whole, "step": run.step_number}))


def reserved_mb(device: torch.device) -> int:
    """Return the GPU's memory that torch holds in this process; 0 on a CPU."""
    return round(torch.cuda.memory_reserved() / 1e6) if device.type == "cuda" else 0


if __name__ == "__main__":
    main()
