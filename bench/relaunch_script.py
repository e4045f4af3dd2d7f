"""The script that `relaunch.py` runs under Pliant and torchrun: DDP over gloo, with a snapshot after every step.

It knows nothing of either. Each process writes when it came to what, one line each, into a file of its own.
"""

# ruff: noqa: E402  # it measures its own imports

import os
import sys
import time

BEGAN = time.time()  # before the expensive imports

import json
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

IMPORTED = time.time()


def born() -> float:
    """Return the start time of this process, by the clock of `time.time`, to a hundredth of a second."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK") + time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def main() -> None:
    folder, pace_s = Path(sys.argv[1]), float(sys.argv[2])
    stamps = {"born": born(), "began": BEGAN, "imported": IMPORTED}
    dist.init_process_group("gloo")
    stamps["grouped"] = time.time()
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    snapshot, first = folder / "snapshot.pt", 0
    if snapshot.exists():
        saved = torch.load(snapshot)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    wrapped = DistributedDataParallel(model)
    stamps["built"] = time.time()
    file = (folder / f"{os.getpid()}-{int(stamps['born'] * 100)}.steps").open("w", buffering=1)
    for step in count(first + 1):
        generator = torch.Generator().manual_seed(step * world + rank)
        x = torch.randn(84, 20, generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(wrapped(x), (x[:, :10].sum(1) > x[:, 10:].sum(1)).long())
        torch.autograd.backward(loss)
        optimizer.step()
        now = time.time()
        if step == first + 1:
            file.write(json.dumps({**who(), "rank": rank, "world": world, **stamps, "stepped": now}) + "\n")
        file.write(f"{now}\n")
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, snapshot.with_suffix(".unfinished"))
            snapshot.with_suffix(".unfinished").replace(snapshot)
        time.sleep(pace_s)  # otherwise the job would end before the event


def who() -> dict[str, object]:
    """Describe this process. A fork has its template's command line, and each world has its own port."""
    argv = Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return {"pid": os.getpid(), "parent": os.getppid(), "port": os.environ["MASTER_PORT"], "argv": argv}


if __name__ == "__main__":
    main()
