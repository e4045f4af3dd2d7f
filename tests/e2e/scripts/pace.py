"""The pace of a toy's steps, which are too quick to interfere with, and the lines printed about them."""

import os
import threading
from pathlib import Path


def report(step: int, rank: int, world: int, note: str = "") -> None:
    """Print one line about a step that is done; then wait as long as the file says that PACE_FILE names."""
    line = f"step {step} rank {rank} world {world} pid {os.getpid()}{' ' + note if note else ''}"
    print(line + "\n", end="", flush=True)  # in one piece, also if others write to the same place
    name = os.environ.get("PACE_FILE")
    if name:
        threading.Event().wait(float(Path(name).read_text() or 0))
