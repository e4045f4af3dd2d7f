"""A checkpoint for whoever does not have Pliant: the model under its own names, and the rest beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pliant.errors import BadInput
from pliant.train.checkpoint.local_storage import LocalNewFile
from pliant.train.checkpoint.manifest import Manifest
from pliant.train.checkpoint.safetensors_header import encode_header
from pliant.train.checkpoint.tree_json import TensorInfo, tensors_of, tree_to_json
from pliant.train.state.transfer import ReceivedState

MODEL = "model"
MODEL_FILE, REST_FILE, REST_TENSORS = "model.safetensors", "rest.json", "rest.safetensors"


def export_model(file: Path, received: ReceivedState, manifest: Manifest) -> int:
    """Write the model alone, as a safetensors file with the names that its state_dict has. How many tensors it has."""
    tensors = tensors_of(received.tree)
    own = [at for at, tensor in enumerate(tensors) if tensor.name.startswith(f"{MODEL}.")]
    if not own:
        raise BadInput(f"{manifest.checkpoint.name} has no model in it: its state.json says what it has.")
    named = [_renamed(tensors[at]) for at in own]
    _write(file, named, [received.contents[at] for at in own], _metadata(manifest))
    return len(own)


def export_folder(folder: Path, received: ReceivedState, manifest: Manifest) -> list[Path]:
    """Write the model, and everything else as another safetensors file and as JSON. The files that were written."""
    files = [folder / MODEL_FILE]
    export_model(files[0], received, manifest)
    tree, contents = _without_model(received)
    tensors = tensors_of(tree)
    if tensors:
        files.append(folder / REST_TENSORS)
        _write(files[-1], tensors, contents, _metadata(manifest))
    files.append(folder / REST_FILE)
    _write_whole(files[-1], [memoryview(tree_to_json(tree, _metadata(manifest)).encode())])
    return files


def refuse_existing(files: Sequence[Path]) -> None:
    """Call before anything is read: BadInput if one of the files would be written over."""
    for file in files:
        if file.exists():
            raise BadInput(f"{file} is there already: remove it, or export to another place.")


def _renamed(tensor: TensorInfo) -> TensorInfo:
    return TensorInfo(tensor.name.removeprefix(f"{MODEL}."), tensor.dtype, tensor.shape, tensor.nbytes)


def _metadata(manifest: Manifest) -> dict[str, str]:
    """What safetensors keeps beside the tensors; `format` is how other libraries know whose they are."""
    checkpoint = manifest.checkpoint
    return {
        "format": "pt",
        "checkpoint": checkpoint.name,
        "step": f"{checkpoint.lineage.step}",
        "job": manifest.facts.job,
    }


def _without_model(received: ReceivedState) -> tuple[bytes, list[memoryview]]:
    """The state without its model: its tree, with the tensors counted anew, and their bytes."""
    kind, pairs = msgspec.msgpack.decode(received.tree)[:2]
    left = [[key, note] for key, note in pairs if key != ["value", MODEL]]
    contents: list[memoryview] = []
    _renumber([kind, left], received.contents, contents)
    return msgspec.msgpack.encode([kind, left]), contents


def _renumber(note: Any, before: Sequence[memoryview], now: list[memoryview]) -> None:
    """Give the tensors below a note the numbers of their contents among those that are left."""
    if note[0] == "tensor":
        now.append(before[note[1]])
        note[1] = len(now) - 1
    elif isinstance(note[1], list):
        for each in note[1]:
            pair = note[0] in ("dict", "counter")
            for below in each if pair else (each,):
                _renumber(below, before, now)


def _write(file: Path, tensors: Sequence[TensorInfo], contents: Sequence[memoryview], about: dict[str, str]) -> None:
    """The larger a tensor's numbers, the earlier it comes: so each begins where a processor likes to read it."""
    order = sorted(range(len(tensors)), key=lambda at: (-_width(tensors[at]), at))
    head = encode_header([tensors[at] for at in order], about)
    _write_whole(file, [memoryview(head), *(contents[at] for at in order)])


def _width(tensor: TensorInfo) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return tensor.nbytes // count if count else 0


def _write_whole(file: Path, contents: Sequence[memoryview]) -> None:
    """All of it under its name, or nothing."""
    new = LocalNewFile(file.parent, file.name)
    try:
        for content in contents:
            new.write(content)
        new.finish()
    except BaseException:  # why: raised again; a hidden file must not be left by what could have removed it
        new.abandon()
        raise


def origin_of(manifest: Manifest) -> dict[str, Any]:
    """What an exported file says about where it comes from, besides the state itself."""
    facts = manifest.facts
    cursor = None if facts.cursor is None else {"epoch": facts.cursor.epoch, "position": facts.cursor.position}
    said = {"job": facts.job, "checkpoint": manifest.checkpoint.name, "step": manifest.checkpoint.lineage.step}
    return {**said, "cursor": cursor}
