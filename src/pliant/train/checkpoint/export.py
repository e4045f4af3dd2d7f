"""Export of a checkpoint for use without Pliant: the model under its own names, and the rest beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pliant.errors import BadInput
from pliant.train.checkpoint.local_storage import write_whole
from pliant.train.checkpoint.manifest import Manifest
from pliant.train.checkpoint.safetensors_header import encode_header
from pliant.train.checkpoint.tree_json import TensorInfo, tensors_of, tree_to_json
from pliant.train.state.transfer import ReceivedState

MODEL = "model"
MODEL_FILE, REST_FILE, REST_TENSORS = "model.safetensors", "rest.json", "rest.safetensors"


def export_model(file: Path, received: ReceivedState, manifest: Manifest) -> int:
    """Write the model alone, as a safetensors file with the names of its state_dict. Return the number of tensors."""
    tensors = tensors_of(received.tree)
    own = [at for at, tensor in enumerate(tensors) if tensor.name.startswith(f"{MODEL}.")]
    if not own:
        raise BadInput(f"{manifest.checkpoint.name} contains no model. See its state.json for what it contains.")
    named = [_renamed(tensors[at]) for at in own]
    _write(file, named, [received.contents[at] for at in own], _metadata(manifest))
    return len(own)


def export_folder(folder: Path, received: ReceivedState, manifest: Manifest) -> list[Path]:
    """Write the model, and everything else as a second safetensors file and JSON. Return the files written."""
    files = [folder / MODEL_FILE]
    export_model(files[0], received, manifest)
    tree, contents = _without_model(received)
    tensors = tensors_of(tree)
    if tensors:
        files.append(folder / REST_TENSORS)
        _write(files[-1], tensors, contents, _metadata(manifest))
    files.append(folder / REST_FILE)
    write_whole(folder, REST_FILE, [memoryview(tree_to_json(tree, _metadata(manifest)).encode())])
    return files


def refuse_existing(files: Sequence[Path]) -> None:
    """Raise BadInput if one of the files exists. Call it before anything is read."""
    for file in files:
        if file.exists():
            raise BadInput(f"{file} exists already. Remove it, or export to another path.")


def _renamed(tensor: TensorInfo) -> TensorInfo:
    return TensorInfo(tensor.name.removeprefix(f"{MODEL}."), tensor.dtype, tensor.shape, tensor.nbytes)


def _metadata(manifest: Manifest) -> dict[str, str]:
    """Return the metadata of an exported safetensors file. Other libraries read `format`."""
    checkpoint = manifest.checkpoint
    return {
        "format": "pt",
        "checkpoint": checkpoint.name,
        "step": f"{checkpoint.lineage.step}",
        "job": manifest.facts.job,
    }


def _without_model(received: ReceivedState) -> tuple[bytes, list[memoryview]]:
    """Return the state without its model: its tree, with the tensors renumbered, and their bytes."""
    kind, pairs = msgspec.msgpack.decode(received.tree)[:2]
    left = [[key, note] for key, note in pairs if key != ["value", MODEL]]
    contents: list[memoryview] = []
    _renumber([kind, left], received.contents, contents)
    return msgspec.msgpack.encode([kind, left]), contents


def _renumber(note: Any, before: Sequence[memoryview], now: list[memoryview]) -> None:
    """Give the tensors below a note their new numbers, and collect their contents."""
    if note[0] == "tensor":
        now.append(before[note[1]])
        note[1] = len(now) - 1
    elif isinstance(note[1], list):
        for each in note[1]:
            pair = note[0] in ("dict", "counter")
            for below in each if pair else (each,):
                _renumber(below, before, now)


def _write(file: Path, tensors: Sequence[TensorInfo], contents: Sequence[memoryview], about: dict[str, str]) -> None:
    """Write tensors sorted by the width of their numbers, widest first, so that each one is aligned."""
    order = sorted(range(len(tensors)), key=lambda at: (-_width(tensors[at]), at))
    head = encode_header([tensors[at] for at in order], about)
    write_whole(file.parent, file.name, [memoryview(head), *(contents[at] for at in order)])


def _width(tensor: TensorInfo) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return tensor.nbytes // count if count else 0


def origin_of(manifest: Manifest) -> dict[str, Any]:
    """Return the job, checkpoint, step and cursor of an exported file."""
    facts = manifest.facts
    cursor = None if facts.cursor is None else {"epoch": facts.cursor.epoch, "position": facts.cursor.position}
    origin = {"job": facts.job, "checkpoint": manifest.checkpoint.name, "step": manifest.checkpoint.lineage.step}
    return {**origin, "cursor": cursor}
