"""Write the values of each committed step to a CSV file and to TensorBoard's event files, from rank 0 of the job.

Every member keeps the rows of recent steps; they are equal on all members. Rank 0 writes the rows of committed steps.
When rank 0 moves to another process, that process reads the last step in the file and continues after it. After a
rollback the rows of lost steps are removed, so the file has every step once.

The event files need no package: a record is a length, checksums, and a small protocol buffer.
"""

from __future__ import annotations

import csv
import io
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from pliant.errors import BadInput

CSV_FILE = "metrics.csv"
KEPT_MAX = 1000  # rows that a member keeps in case it becomes rank 0
FIXED = ("step", "epoch", "time")

Row = dict[str, float]


class StepLog:
    """The log of one run on one member, in a folder that all members reach."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: deque[Row] = deque(maxlen=KEPT_MAX)
        self._rolled_back_to: int | None = None  # until it is certain that rank 0 has removed the rows of lost steps
        self._names: list[str] = []
        self._last = 0  # the last step in the file
        self._csv: io.TextIOWrapper | None = None
        self._events: EventFile | None = None

    @property
    def is_open(self) -> bool:
        """True while this member writes the files."""
        return self._csv is not None

    def add(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Add the row of a step that was applied."""
        self._rows.append({"step": step, "epoch": epoch, "time": round(time.time(), 3), **values})

    def note(self, values: Mapping[str, float]) -> None:
        """Add values to the row of the last applied step."""
        self._rows[-1].update(values)

    def roll_back(self, step: int) -> None:
        """Forget the steps after this one. They will be computed again."""
        self.close()
        while self._rows and self._rows[-1]["step"] > step:
            self._rows.pop()
        self._rolled_back_to = step

    def write(self, committed: int) -> None:
        """Write the rows of all steps up to `committed` that are not in the file. Call it on rank 0 only."""
        if self._csv is None:
            self._open()
        fresh = list(takewhile(lambda row: row["step"] > self._last, reversed(self._rows)))
        for row in reversed(fresh):
            if row["step"] <= committed:
                self._write_row(row)

    def close(self) -> None:
        """Close the files. Call it at the end, and when this member is not rank 0 any more."""
        if self._csv is not None:
            self._csv.close()
            self._csv = None
        if self._events is not None:
            self._events.close()
            self._events = None

    # ----------------------------------------------------------------------------------------------- the files

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        found = self._read()
        kept = found
        base = self._rolled_back_to
        if base is not None and (not self._rows or self._rows[0]["step"] <= base + 1):
            kept = [row for row in found if row["step"] <= base]  # this member has the rows of all later steps
        self._rolled_back_to = None
        self._names = [name for name in dict.fromkeys(name for row in kept for name in row) if name not in FIXED]
        self._rewrite(kept)
        self._events = EventFile(self._folder, purge_from=self._last)
        for row in kept[-1:]:
            self._write_event(row)  # the process that wrote the row may have ended before it wrote the event

    def _read(self) -> list[Row]:
        """Return the complete rows of the file. The last line may be torn."""
        path = self._folder / CSV_FILE
        if not path.exists():
            return []
        try:
            text = path.read_text(encoding="utf-8")
            rows = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
            found = [{name: float(value) for name, value in row.items() if value} for row in rows]
        except (ValueError, TypeError, csv.Error) as error:
            raise BadInput(f"{path} is not a log of steps: {error}. Move it away, or log to another folder.") from error
        if any("step" not in row for row in found):
            raise BadInput(f"{path} is not a log of steps: a row has no step. Move it away, or log to another folder.")
        return found

    def _rewrite(self, rows: list[Row]) -> None:
        """Write the whole file, and keep it open to append."""
        if self._csv is not None:
            self._csv.close()
        path = self._folder / CSV_FILE
        fresh = path.with_name(f"{CSV_FILE}.{os.getpid()}.new")
        with fresh.open("w", encoding="utf-8", newline="") as file:
            file.write(self._line((*FIXED, *self._names)))
            file.writelines(self._line_of(row) for row in rows)
        fresh.replace(path)
        self._csv = path.open("a", encoding="utf-8", newline="")
        self._last = int(rows[-1]["step"]) if rows else 0

    def _write_row(self, row: Row) -> None:
        assert self._csv is not None
        if new := [name for name in row if name not in FIXED and name not in self._names]:
            self._names += new
            self._rewrite(self._read())
        self._csv.write(self._line_of(row))
        self._csv.flush()  # to the system: it survives the end of this process
        self._write_event(row)
        self._last = int(row["step"])

    def _write_event(self, row: Row) -> None:
        assert self._events is not None
        values = {name: value for name, value in row.items() if name not in FIXED}
        self._events.write(int(row["step"]), row["time"], values)

    def _line_of(self, row: Row) -> str:
        cells = [f"{row['step']:.0f}", f"{row['epoch']:.0f}", f"{row['time']:.3f}"]
        return self._line((*cells, *(repr(float(row[name])) if name in row else "" for name in self._names)))

    @staticmethod
    def _line(cells: tuple[str, ...]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        return text.getvalue()


class EventFile:
    """One of TensorBoard's event files. TensorBoard shows all files of a folder as one run.

    With `purge_from` it drops what older files have from that step on.
    """

    def __init__(self, folder: Path, purge_from: int) -> None:
        now = time.time()
        name = f"events.out.tfevents.{now:.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("wb", buffering=0)
        self._record(now, 0, _text(3, b"brain.Event:2"))
        self._record(now, purge_from, _text(7, b"\x08\x01"))  # SessionLog with status START

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Write the values of a step."""
        if values:
            self._record(at, step, _text(5, b"".join(_text(1, _value(*each)) for each in values.items())))

    def close(self) -> None:
        self._file.close()

    def _record(self, at: float, step: int, field: bytes) -> None:
        event = b"\x09" + struct.pack("<d", at) + b"\x10" + _varint(step) + field
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))


def _value(tag: str, value: float) -> bytes:
    """Return a Summary.Value: its tag and a float of 32 bits."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _text(1, tag.encode()) + b"\x15" + packed


def _text(number: int, content: bytes) -> bytes:
    """Return a field of bytes of a protocol buffer."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _crc_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [crc >> 1 ^ (0x82F63B78 if crc & 1 else 0) for crc in table]
    return table


_CRC32C = _crc_table()


def _checksum(content: bytes) -> bytes:
    """Return the masked CRC-32C of a record."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
