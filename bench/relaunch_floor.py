"""A lower bound of a relaunch: fork processes with all modules imported, without coordination.

`relaunch.py` runs it as `relaunch_floor.py FOLDER WORKERS PORT`. It ends the workers when all have completed a step.
They write the same files as a launched script.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from pathlib import Path

import relaunch_script

from pliant.agent.process.template import TORCH


def main() -> int:
    folder, workers, port = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    for module in TORCH:
        importlib.import_module(module)
    sys.argv = ["", str(folder), "0.05"]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(workers)}
    children = []
    try:
        for rank in range(workers):
            pid = os.fork()
            if not pid:
                _work(rank)
            children.append(pid)
        end = time.monotonic() + 60.0
        while len(list(folder.glob("*.steps"))) < workers and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.2)  # until the files are complete
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return 0


def _work(rank: int) -> None:
    os.environ["RANK"] = str(rank)
    relaunch_script.BEGAN = relaunch_script.IMPORTED = time.time()
    try:
        relaunch_script.main()
    finally:
        os._exit(1)  # the others were killed first


if __name__ == "__main__":
    sys.exit(main())
