"""A worker that computes a job's steps again, alone, up to one of them, and says what it found (`pliant replay`)."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pliant.core.model.fingerprint import Fingerprint
from pliant.core.model.job import Terms
from pliant.torch.errors import Left
from pliant.torch.state.state_hash import StateHash

log = logging.getLogger(__name__)

PROGRESS_S = 10.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """What is written for whoever asked: the script's terms, what its bits depend on here, and the state's hashes."""

    terms: Terms
    bits: Fingerprint
    step: int
    said: int  # as the members' words carried it
    whole: int


class Replay:
    """Watches the boundaries of a run, and ends it after the step that was asked for."""

    def __init__(self, to: int, file: Path, terms: Terms, bits: Fingerprint, hashes: StateHash) -> None:
        self._to = to
        self._file = file
        self._terms = terms
        self._bits = bits
        self._hashes = hashes
        self._told_at = time.monotonic()

    def at_boundary(self, step: int, state: int) -> None:
        """Raises `Left` after the last step to be computed."""
        if step < self._to:
            if time.monotonic() - self._told_at > PROGRESS_S:
                self._told_at = time.monotonic()
                log.info("step %d of %d is computed again", step, self._to)
            return
        after_backward = self._hashes.after_backward()
        said = state if after_backward is None else after_backward
        found = Replayed(self._terms, self._bits, step, said, self._hashes.whole())
        self._file.write_bytes(msgspec.json.encode(found))
        raise Left(0, f"step {step} is computed again")
