"""Measure lower bounds for a checkpoint on this machine, for `bench/checkpoint.py`."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

BLOCK = 4 << 20


def disk_s(folder: Path, nbytes: int, files: int, *, hashed: bool) -> float:
    """Return the seconds to write and flush `nbytes` to the disk, in `files` files at once."""
    block = memoryview(secrets.token_bytes(BLOCK))

    def write(at: int) -> None:
        handle = os.open(folder / f"floor-{at}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        digest = hashlib.sha256()
        left = nbytes // files
        while left:
            part = block[: min(left, BLOCK)]
            if hashed:
                digest.update(part)
            left -= os.write(handle, part)
        os.fsync(handle)
        os.close(handle)

    try:
        return _together(write, files)
    finally:
        for at in range(files):
            (folder / f"floor-{at}").unlink(missing_ok=True)


def copy_s(nbytes: int, parts: int) -> float:
    """Return the seconds to copy `nbytes` within allocated memory, with one thread for each part.

    A step would wait that long if no processor were idle.
    """
    room = 64 << 20
    torch.set_num_threads(1)
    pairs = [(torch.zeros(room, dtype=torch.uint8), torch.ones(room, dtype=torch.uint8)) for _ in range(parts)]

    def copy(at: int) -> None:
        to, of = pairs[at]
        left = nbytes // parts
        while left:
            now = min(left, room)
            to[:now].copy_(of[:now])
            left -= now

    return _together(copy, parts)


def _together(work: Callable[[int], None], count: int) -> float:
    threads = [threading.Thread(target=work, args=(at,)) for at in range(count)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began
