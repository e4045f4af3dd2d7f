"""The form of a copy of buckets, as another server or a checkpoint has it. Checked before any of it is used."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from pliant.core.ps.model import BUCKETS
from pliant.errors import BadInput
from pliant.ps.tables.spec import PushPolicy, Table, check_tables

_KEYS = {"buckets", "tables", "policy", "version", "trails", "waiting", "workers", "last", "rows", "sums"}


def require_copy(copy: Any) -> dict[str, Any]:
    """Return the copy. Raises BadInput if it is not one that `TableCopy.extract` can have made."""
    if not isinstance(copy, dict) or copy.keys() != _KEYS:
        raise _damaged("it has other parts")
    try:
        tables = msgspec.convert(copy["tables"], list[Table])
        policy = msgspec.convert(copy["policy"], PushPolicy)
        workers = msgspec.convert(copy["workers"], list[str])
    except msgspec.ValidationError as error:
        raise _damaged(str(error)) from error
    check_tables(tables, policy)
    buckets = copy["buckets"]
    _require_array(buckets, "buckets", "int64", None)
    if len(buckets) and not (buckets[0] >= 0 and buckets[-1] < BUCKETS and (buckets[1:] > buckets[:-1]).all()):
        raise _damaged("its buckets do not ascend, or do not exist")
    for name in ("version", "trails", "waiting"):
        _require_array(copy[name], name, "int64", (len(buckets),))
    _require_array(copy["last"], "last", "int64", (len(workers), len(buckets)))
    if len({*workers}) < len(workers):
        raise _damaged("it names a worker twice")
    widths = {table.name: table.width for table in tables}
    _require_rows(copy["rows"], widths, "rows")
    _require_rows(copy["sums"], {table.name: table.dim for table in tables}, "sums")
    if copy["rows"].keys() != widths.keys():
        raise _damaged("it does not have the rows of every table")
    return copy


def _require_rows(found: Any, widths: dict[str, int], what: str) -> None:
    if not isinstance(found, dict) or not found.keys() <= widths.keys():
        raise _damaged(f"its {what} are of other tables")
    for name, each in found.items():
        if not isinstance(each, tuple) or len(each) != 2:
            raise _damaged(f"its {what} of {name} are not ids and values")
        ids, block = each
        _require_array(ids, what, "int64", None)
        _require_array(block, what, "float32", (len(ids), widths[name]))
        if len(np.unique(ids)) < len(ids):
            raise _damaged(f"its {what} of {name} have an id twice")


def _require_array(found: Any, what: str, dtype: str, shape: tuple[int, ...] | None) -> None:
    """Require an array of this type and shape, or of one dimension."""
    if not isinstance(found, np.ndarray) or found.dtype != dtype:
        raise _damaged(f"{what} is not an array of {dtype}")
    if found.shape != shape and (shape is not None or found.ndim != 1):
        raise _damaged(f"{what} has the shape {found.shape}")


def _damaged(why: str) -> BadInput:
    return BadInput(f"The copy of buckets is damaged: {why}.")
