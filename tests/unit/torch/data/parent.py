"""A training process with data workers, for tests that end it in every way: `data_parent.py HOW [PORT]`.

It connects to the port, if one is given, before the data workers are forked, loads a part, prints its data workers'
process ids, and then does what HOW says.
"""

import os
import socket
import sys
import threading

from pliant.core.data.grid import Grid
from pliant.torch.data.tools import TorchTools
from pliant.train.data.loader import MicroBatch, SampleIndices
from pliant.train.live.data.loader import LiveLoader

GRID = Grid(64, 8, 8, 1)


class Slow:
    """Data whose later samples never come: the data workers are in the middle of something."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, sample: int) -> int:
        if sample >= 8:
            threading.Event().wait()
        return sample


def main(how: str, port: int | None) -> None:
    peer = socket.create_connection(("127.0.0.1", port)) if port else None
    indices = SampleIndices(GRID, seed=0, order="sequential")
    loader = LiveLoader(Slow(), indices, GRID, seed=0, num_workers=2, tools=TorchTools())
    loader.start()
    loader.load(MicroBatch(1, (0,)))
    loader.load(MicroBatch(1, (1,)))
    if how != "idle":
        loader.expect([MicroBatch(2, (slot,)) for slot in range(8)])
    print(*loader.pids, flush=True)
    if how == "leave":
        sys.exit(3)
    if how == "exit":
        os._exit(5)
    threading.Event().wait()
    assert peer is None


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
