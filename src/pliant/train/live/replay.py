"""Compute a job's steps again with one worker, up to a given step, and report the state's hashes (`pliant replay`)."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pliant.core.model.fingerprint import Fingerprint
from pliant.core.model.job import Terms
from pliant.train.live.errors import Left
from pliant.train.live.state_hash import StateHash

log = logging.getLogger(__name__)

PROGRESS_S = 10.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay: the script's terms, this machine's fingerprint, and the state's hashes."""

    terms: Terms
    fingerprint: Fingerprint
    step: int
    word_hash: int  # the hash in the members' control words
    whole: int


class Replay:
    """A replay, which follows the boundaries of a run and ends it after the given step."""

    def __init__(self, to: int, file: Path, terms: Terms, fingerprint: Fingerprint, hashes: StateHash) -> None:
        self._to = to
        self._file = file
        self._terms = terms
        self._fingerprint = fingerprint
        self._hashes = hashes
        self._logged_at = time.monotonic()

    def at_boundary(self, step: int, state: int) -> None:
        """Log progress at a boundary. After the last step, write the result and raise `Left`."""
        if step < self._to:
            if time.monotonic() - self._logged_at > PROGRESS_S:
                self._logged_at = time.monotonic()
                log.info("replayed step %d of %d", step, self._to)
            return
        after_backward = self._hashes.after_backward()
        word_hash = state if after_backward is None else after_backward
        found = Replayed(self._terms, self._fingerprint, step, word_hash, self._hashes.whole())
        self._file.write_bytes(msgspec.json.encode(found))
        raise Left(0, f"replayed up to step {step}")
