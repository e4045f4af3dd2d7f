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
from torch import nn

import pliant.torch as pliant
from gpu.overhead import MODELS, Points, one_tensor


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--pace", type=float, default=0.02)
    parser.add_argument("--model", default="10M", choices=["10M", "1B"])
    given = parser.parse_args()
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    model: nn.Module = MODELS[given.model]().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    pause = threading.Event()  # never set: a step takes a while
    log = (given.folder / f"{os.environ.get('PLIANT_MEMBER', 'alone')}.steps").open("w")
    with pliant.join() as job:
        run = job.train(
            model,
            optimizer,
            Points(given.model, 512, device),
            batch_size=32,
            slots=16,
            epochs=1000,
            max_steps=given.steps,
            deterministic=given.deterministic,
            collate_fn=one_tensor,
        )
        for x in run:
            run.backward((model(x) - x).square().mean())
            if run.step():
                pause.wait(given.pace)
                print(json.dumps([time.time(), run.step_number, run.size, run.rank]), file=log, flush=True)
    whole = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()
    member = os.environ.get("PLIANT_MEMBER", "alone")
    (given.folder / f"{member}.done").write_text(json.dumps({"member": member, "hash": whole, "step": run.step_number}))


if __name__ == "__main__":
    main()
