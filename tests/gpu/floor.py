"""Measure what the driver and NCCL themselves cost, without Pliant: the floor of the pauses and of the memory.

steps           compute short steps, and print the longest gap between two for each line of standard input
guest           use the GPU as another process does
communicators   build, use and end process groups in two processes, and print the host memory after each
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch

from gpu.models import wait_for_device

TESTS = Path(__file__).parents[1]
LIMIT_S = 120.0
GUEST_FLOATS = 1 << 28  # 1 GB
QUIET_S = 1.0  # before and after what is measured
ROUNDS = 40
WARM = 8

_pause = threading.Event()  # never set


# ------------------------------------------------------------------------------------------------ the workers


def steps() -> None:
    """Print the longest gap between two steps for each line of standard input."""
    device = torch.device("cuda")
    values = torch.ones(1024, 1024, device=device)
    longest, lock = [0.0], threading.Lock()

    def compute() -> None:
        last = time.perf_counter()
        while True:
            torch.mm(values, values).sum()
            wait_for_device(device)
            now = time.perf_counter()
            with lock:
                longest[0] = max(longest[0], now - last)
            last = now

    threading.Thread(target=compute, daemon=True).start()
    for _ in sys.stdin:
        with lock:
            found, longest[0] = longest[0], 0.0
        print(json.dumps(found), flush=True)


def guest() -> None:
    """Hold memory of the GPU until SIGTERM ends the interpreter as usual."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    values = torch.ones(GUEST_FLOATS, device="cuda")
    wait_for_device(values.device)
    print("ready", flush=True)
    sys.stdin.read()


def communicators(rank: int, port: int, end: Literal["abort", "shutdown"]) -> None:
    """Print the MB of host memory after each of the rounds."""
    from torch._C._distributed_c10d import PrefixStore, ProcessGroupNCCL, TCPStore  # the last but one: only with CUDA

    make: Any = ProcessGroupNCCL
    store = TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    values = torch.ones(1 << 20, device="cuda")
    found = []
    for number in range(ROUNDS):
        group = make(PrefixStore(str(number), store), rank, 2, make.Options())
        group.allreduce([values]).wait()
        wait_for_device(values.device)
        if end == "abort":
            group.abort()
        group.shutdown()
        del group
        found.append(resident_mb())
    print(json.dumps(found), flush=True)


def resident_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


# -------------------------------------------------------------------------------------------- the measurement


def floor(device: str) -> dict[str, Any]:
    """Return the pauses that another process on the GPU causes, and the host memory that each process group keeps."""
    if device != "cuda":
        return {"skipped": "the floor is that of a GPU"}
    return {
        "pause_s": _pauses(),
        "kept_mb_each": {end: _kept_mb(end, port) for end, port in (("abort", 29517), ("shutdown", 29518))},
    }


def _worker(*arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "gpu.floor", *arguments]
    return subprocess.Popen(command, cwd=TESTS, stdin=pipe, stdout=pipe, text=True)


def _first_line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline()


def _pauses() -> dict[str, float]:
    """Return the longest gap between two steps of a process while another one begins and ends."""
    found: dict[str, float] = {}
    with _worker("steps") as stepping, ExitStack() as guests:
        guests.callback(stepping.kill)

        def measure(name: str, change: Callable[[], object]) -> None:
            _pause.wait(QUIET_S)
            _longest(stepping)
            change()
            _pause.wait(QUIET_S)
            found[name] = round(_longest(stepping), 4)

        def begin() -> None:
            guest = guests.enter_context(_worker("guest"))
            guests.callback(guest.kill)
            running.append(guest)
            assert _first_line(guest) == "ready\n", "the guest could not use the GPU"

        def end(how: signal.Signals) -> None:
            guest = running.pop()
            guest.send_signal(how)
            guest.wait(LIMIT_S)

        running: list[subprocess.Popen[str]] = []
        measure("the first steps", lambda: None)
        measure("no change", lambda: None)
        for name, how in (("ends", signal.SIGTERM), ("is killed", signal.SIGKILL)):
            measure("a process begins", begin)
            measure(f"a process {name}", lambda how=how: end(how))  # type: ignore[misc]
    return found


def _longest(stepping: subprocess.Popen[str]) -> float:
    """Return the longest gap between two steps since the last call."""
    assert stepping.stdin is not None
    print(file=stepping.stdin, flush=True)
    return float(_first_line(stepping))


def _kept_mb(end: str, port: int) -> list[float]:
    """Return the MB of host memory that each process group left behind, in both processes."""
    ranks = [_worker("communicators", "--rank", str(rank), "--port", str(port), "--end", end) for rank in (0, 1)]
    try:
        found = [json.loads(rank.communicate(timeout=LIMIT_S)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [round((each[-1] - each[WARM]) / (ROUNDS - 1 - WARM), 3) for each in found]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["steps", "guest", "communicators"])
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--end", choices=["abort", "shutdown"], default="abort")
    given = parser.parse_args()
    if given.what == "communicators":
        communicators(given.rank, given.port, given.end)
    else:
        {"steps": steps, "guest": guest}[given.what]()


if __name__ == "__main__":
    main()
