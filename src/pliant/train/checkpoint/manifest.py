"""The manifest of a checkpoint as a file: what was saved, and the hashes that prove its files complete.

The last line is a hash of everything above it, so a manifest proves its own integrity. The manifest in the
coordinator's store decides which checkpoint counts. This file lets people, and commands without a coordinator, check
and open it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pliant.core.data.ledger import Lineage
from pliant.core.data.sample_order import Cursor
from pliant.core.model.checkpoint import Checkpoint, Piece
from pliant.errors import BadInput
from pliant.train.checkpoint.errors import DamagedCheckpoint, read_error
from pliant.train.checkpoint.storage import MANIFEST_FILE

if TYPE_CHECKING:
    from pliant.train.checkpoint.storage import Storage

FORMAT = "pliant checkpoint 1"
NBYTES_MAX = 64 << 20  # of a manifest
_LAST = re.compile(rb',\n  "check": "([0-9a-f]{64})"\n}\n\Z')


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """Descriptive facts about a checkpoint. Nothing is decided by them."""

    at: float  # seconds since 1970
    job: str = ""
    generation: int = 0  # the world that wrote it
    members: tuple[str, ...] = ()
    cursor: Cursor | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest whose hash is correct."""

    checkpoint: Checkpoint
    facts: CheckpointFacts

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.checkpoint.pieces)


def write_manifest(storage: Storage, checkpoint: Checkpoint, facts: CheckpointFacts) -> None:
    """Write the manifest. Call it once all pieces are written: it makes the name a checkpoint. Raises OSError.

    Several members may call it for one checkpoint: the first one's facts stay.
    """
    try:
        storage.write_file(checkpoint.name, MANIFEST_FILE, encode_manifest(Manifest(checkpoint, facts)))
    except FileExistsError:
        if not _is_of(storage, checkpoint):
            raise


def _is_of(storage: Storage, checkpoint: Checkpoint) -> bool:
    try:
        return read_manifest(storage, checkpoint.name).checkpoint == checkpoint
    except BadInput:
        return False


def read_manifest(storage: Storage, name: str) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises DamagedCheckpoint if it was altered, StorageUnreachable if it cannot be read.
    """
    where = f"{name}/{MANIFEST_FILE}"
    try:
        with storage.open_file(name, MANIFEST_FILE) as file:
            text = file.read(NBYTES_MAX + 1)
    except OSError as error:
        raise read_error(where, error) from error
    try:
        manifest = decode_manifest(text)
    except ValueError as error:
        raise DamagedCheckpoint(where, str(error)) from error
    if manifest.checkpoint.name != name:
        raise DamagedCheckpoint(where, f"it is the manifest of {manifest.checkpoint.name!r}")
    return manifest


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as the content of a file."""
    checkpoint, facts = manifest.checkpoint, manifest.facts
    said: dict[str, Any] = {
        "format": FORMAT,
        "name": checkpoint.name,
        "job": facts.job,
        "step": checkpoint.lineage.step,
        "cursor": None if facts.cursor is None else {"epoch": facts.cursor.epoch, "position": facts.cursor.position},
        "lineage": {"generation": checkpoint.lineage.generation, "digest": f"{checkpoint.lineage.digest:016x}"},
        "state": f"{checkpoint.state:016x}",
        "world": {"generation": facts.generation, "members": list(facts.members)},
        "time": datetime.fromtimestamp(facts.at, UTC).isoformat(),
        "at": facts.at,
        "pieces": [{"file": each.file, "nbytes": each.nbytes, "sha256": each.sha256} for each in checkpoint.pieces],
    }
    rows = [f"  {json.dumps(key)}: {_row(value)}" for key, value in said.items()]
    body = ("{\n" + ",\n".join(rows)).encode()
    return body + f',\n  "check": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


def decode_manifest(text: bytes) -> Manifest:
    """Return the manifest encoded by `encode_manifest`. Raises ValueError with the reason if a bit differs."""
    last = _LAST.search(text)
    if last is None:
        raise ValueError("it is incomplete" if text else "it is empty")
    body = text[: last.start()]
    if hashlib.sha256(body).hexdigest() != last[1].decode():
        raise ValueError("its content differs from what was written")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}; it was written by another version")
    try:
        return _manifest_from(said)
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is missing or invalid ({error})") from error


def _manifest_from(said: dict[str, Any]) -> Manifest:
    lineage = Lineage(said["lineage"]["generation"], said["step"], int(said["lineage"]["digest"], 16))
    pieces = tuple(Piece(each["file"], each["nbytes"], each["sha256"]) for each in said["pieces"])
    cursor = said["cursor"]
    facts = CheckpointFacts(
        at=said["at"],
        job=said["job"],
        generation=said["world"]["generation"],
        members=tuple(said["world"]["members"]),
        cursor=None if cursor is None else Cursor(cursor["epoch"], cursor["position"]),
    )
    return Manifest(Checkpoint(lineage, said["name"], int(said["state"], 16), pieces), facts)


def _row(value: Any) -> str:
    """Return JSON with a list over several lines, anything else on one line."""
    if not isinstance(value, list) or not value:
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(f"    {json.dumps(each, ensure_ascii=False)}" for each in value) + "\n  ]"
