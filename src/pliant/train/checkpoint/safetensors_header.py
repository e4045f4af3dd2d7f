"""The header of a safetensors file: the type, shape and offsets of each tensor.

The format is written here because the `safetensors` package serializes whole files in memory: it cannot stream blocks
into hashed, atomically named or uploaded files, and its tensor types need numpy or a framework.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pliant.train.checkpoint.tree_json import TensorInfo

LENGTH = struct.Struct("<Q")
_DEVICE_SUFFIX = "@device"  # suffix of the dtype of a tensor that was not on the CPU; its bits are the same
_TYPES = {
    "bool": ("BOOL", 1),
    "uint8": ("U8", 1),
    "int8": ("I8", 1),
    "uint16": ("U16", 2),
    "int16": ("I16", 2),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "uint32": ("U32", 4),
    "int32": ("I32", 4),
    "float32": ("F32", 4),
    "uint64": ("U64", 8),
    "int64": ("I64", 8),
    "float64": ("F64", 8),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
}
_PIECE_NAME = re.compile(r"(\d+)-of-(\d+)-(.+)\.safetensors")


@dataclass(frozen=True, slots=True)
class TensorRange:
    """The bytes of one tensor in a file, counted from the end of the header."""

    name: str
    begin: int
    end: int


def piece_name(index: int, count: int, member: str) -> str:
    """Return the file name of a piece."""
    return f"{index}-of-{count}-{member}.safetensors"


def parse_piece_name(file: str) -> tuple[int, int] | None:
    """Return the index and count of a piece by its file name; None for any other file."""
    found = _PIECE_NAME.fullmatch(file)
    return (int(found[1]), int(found[2])) if found else None


def safetensors_type(tensor: TensorInfo) -> tuple[str, list[int]]:
    """Return the safetensors type and shape of a tensor.

    A type it lacks is stored as bytes, with one more dimension.
    """
    shape, count = list(tensor.shape), math.prod(tensor.shape)
    name, each = _TYPES.get(tensor.dtype.removesuffix(_DEVICE_SUFFIX), ("", 0))
    if name and count * each == tensor.nbytes:
        return name, shape
    whole = count > 0 and tensor.nbytes % count == 0
    return "U8", [*shape, tensor.nbytes // count] if whole else [tensor.nbytes]


def encode_header(tensors: Iterable[TensorInfo], about: Mapping[str, str]) -> bytes:
    """Return the header of a file that holds these tensors in this order."""
    rows: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    at = 0
    for tensor in tensors:
        dtype, shape = safetensors_type(tensor)
        rows[tensor.name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the first tensor begins at a multiple of eight
    return LENGTH.pack(len(text)) + text


def decode_header(text: bytes) -> Sequence[TensorRange]:
    """Return the tensors of a header, in byte order. Raises ValueError if it is invalid or leaves a byte out."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("its header is not JSON") from error
    if not isinstance(rows, dict):
        raise ValueError("its header is not a JSON object")
    found: list[TensorRange] = []
    for name, row in rows.items():
        match row:
            case _ if name == "__metadata__":
                pass
            case {"data_offsets": [int(begin), int(end)]} if 0 <= begin <= end:
                found.append(TensorRange(name, begin, end))
            case _:
                raise ValueError(f"its header has no valid offsets for {name}")
    found.sort(key=lambda each: (each.begin, each.end))
    at = 0
    for each in found:
        if each.begin != at:
            raise ValueError(f"it has a gap or an overlap before {each.name}")
        at = each.end
    return found
