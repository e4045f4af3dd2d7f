"""The output of a prediction: a folder, or a URL, with one file for each shard, which appears whole or not at all.

    OUTPUT/predictions-000000004096-000000008192.jsonl     the records 4096 to 8191, one line each
    OUTPUT/_prediction.json                                what was predicted: the data and the saved model

A shard is predicted as a whole before its file is written, and a file that exists stays. So each record is in the
output once, although a lost worker may have predicted it before another one does.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pliant.errors import BadInput
from pliant.train.checkpoint import open_storage

MARK = "_prediction.json"
ID = "id"


class PredictionFolder:
    """The folder of the predictions."""

    def __init__(self, where: str) -> None:
        parent, _, name = (where if "://" in where else str(Path(where).absolute())).rstrip("/").rpartition("/")
        if not name or parent.endswith(":/"):
            raise BadInput(
                f"--output {where!r} is not a folder. Pass a folder, or a URL such as s3://bucket/predictions."
            )
        self._where, self._name = where, name
        self._storage = open_storage(parent or "/")

    def claim(self, of: dict[str, Any]) -> str:
        """Begin a prediction, or continue it, and return its id. Raises BadInput if the folder has anything else in it.

        A folder that was removed gets another id, and so has the folder of that path on another machine.
        """
        try:
            held = self._storage.file_sizes(self._name)
            if not held:
                with suppress(FileExistsError):  # another machine began it at the same time
                    content = json.dumps({**of, ID: secrets.token_hex(8)}).encode()
                    self._storage.write_file(self._name, MARK, content)
                held = {MARK: 0}
            found = self._read_mark() if MARK in held else None
        except OSError as error:
            raise BadInput(f"--output {self._where} cannot be used: {error}.") from error
        if found is None:
            raise BadInput(
                f"--output {self._where} has other files in it. Pass a folder that is empty or does not exist."
            )
        known = found.pop(ID, "none")
        if found != of:
            differs = ", ".join(f"{key} {found.get(key)} -> {of[key]}" for key in of if found.get(key) != of[key])
            raise BadInput(
                f"--output {self._where} has the predictions of something else ({differs}). Pass another folder, or "
                "remove this one, and --fresh if that job has not finished: it starts over."
            )
        return str(known)

    def _read_mark(self) -> dict[str, Any] | None:
        with self._storage.open_file(self._name, MARK) as file:
            try:
                found = json.loads(file.read())
            except ValueError:
                return None
        return found if isinstance(found, dict) else None

    def write(self, start: int, predictions: Sequence[Any]) -> None:
        """Write the predictions of a shard, whose records begin with this number. Raises OSError."""
        file = f"predictions-{start:012d}-{start + len(predictions):012d}.jsonl"
        lines = "".join(_line(record, each) for record, each in enumerate(predictions, start))
        with suppress(FileExistsError):
            self._storage.write_file(self._name, file, lines.encode())


def _line(record: int, prediction: Any) -> str:
    try:
        return json.dumps({"record": record, "prediction": prediction}, allow_nan=False) + "\n"
    except ValueError as error:
        raise BadInput(f"The prediction for record {record} is not finite: {prediction}. Correct the model.") from error
