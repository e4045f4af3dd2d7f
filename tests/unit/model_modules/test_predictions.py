"""The output of a prediction has each record once, and never the predictions of two models."""

import json
import shutil
from pathlib import Path

import pytest

from pliant.errors import BadInput
from pliant.model_modules.predictions import PredictionFolder

OF = {"data": "a.csv", "saved": "tables.1"}


def test_a_shard_is_written_once_however_often_it_is_predicted(tmp_path: Path) -> None:
    folder = PredictionFolder(str(tmp_path / "out"))
    assert folder.claim(OF) == folder.claim(OF)
    folder.write(2, [0.5, {"a": 1}])
    folder.write(2, [0.5, {"a": 1}])
    (file,) = (tmp_path / "out").glob("*.jsonl")
    assert file.name == "predictions-000000000002-000000000004.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == [{"record": 2, "prediction": 0.5}, {"record": 3, "prediction": {"a": 1}}]


def test_a_folder_with_anything_else_is_refused(tmp_path: Path) -> None:
    PredictionFolder(str(tmp_path / "out")).claim(OF)
    with pytest.raises(BadInput, match=r"something else \(saved tables.1 -> tables.2\).*--fresh"):
        PredictionFolder(str(tmp_path / "out")).claim(OF | {"saved": "tables.2"})
    for name, content in (("notes.txt", ""), ("_prediction.json", "damaged")):
        other = tmp_path / name.strip("_.")
        other.mkdir()
        (other / name).write_text(content)
        with pytest.raises(BadInput, match="has other files in it"):
            PredictionFolder(str(other)).claim(OF)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be used"):
        PredictionFolder(str(tmp_path / "file")).claim(OF)
    with pytest.raises(BadInput, match="is not a folder"):
        PredictionFolder("s3://bucket")


def test_a_folder_that_was_removed_and_one_elsewhere_have_other_ids(tmp_path: Path) -> None:
    folder = PredictionFolder(str(tmp_path / "out"))
    before = folder.claim(OF)
    shutil.rmtree(tmp_path / "out")
    assert len({before, folder.claim(OF), PredictionFolder(str(tmp_path / "elsewhere")).claim(OF)}) == 3


def test_a_prediction_that_is_not_finite_names_its_record(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="record 8 is not finite"):
        PredictionFolder(str(tmp_path / "out")).write(7, [0.0, float("nan")])
