"""Data is recognised by its files, or by some of its records."""

import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from pliant.model_modules.facts import content_of, described
from pliant.records import open_records


@dataclass
class Point:
    x: int


def test_a_file_with_as_many_records_and_another_time_or_size_is_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path / "home"))
    file = tmp_path / "tonight.csv"

    def found(text: str, at: int) -> str:
        file.write_text(text)
        os.utime(file, (at, at))
        return content_of(open_records(file))

    before = found("x\n1\n2\n", 1000)
    assert before == found("x\n1\n2\n", 1000)
    assert len({before, found("x\n1\n3\n", 1001), found("x\n1\n33\n", 1000)}) == 3
    found("x\n1\n2\n", 1000)
    (tmp_path / "machine").mkdir()
    copy = shutil.copy2(file, tmp_path / "machine")
    assert content_of(open_records(copy)) == before


def test_files_of_a_folder_count_each(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (1000, 1000))
    before = content_of(open_records(tmp_path, "files"))
    os.utime(tmp_path / "b", (1001, 1001))
    assert content_of(open_records(tmp_path, "files")) != before


def test_files_without_a_time_are_recognised_by_their_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path))
    files = fsspec.filesystem("memory")
    files.pipe_file("/facts/a.csv", b"x\n1\n2\n")
    before = content_of(open_records("memory://facts/a.csv"))
    whole = content_of(open_records("memory://facts", "files"))
    files.pipe_file("/facts/a.csv", b"x\n1\n3\n")
    assert content_of(open_records("memory://facts/a.csv")) != before
    assert content_of(open_records("memory://facts", "files")) != whole


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1], [2]),
        ([1], [1.0]),
        (["a", "b", "c"], ["a", "b", "d"]),
        ([(1, [b"a"])], [(1, [b"b"])]),
        ([{"a": 1, "b": 2}], [{"a": 1, "b": 3}]),
        ([{"a", "b"}], [{"a", "c"}]),
        ([np.zeros(5000)], [np.r_[np.zeros(2500), 1, np.zeros(2499)]]),
        ([np.array(["a", None], object)], [np.array(["b", None], object)]),
        ([Point(1)], [Point(2)]),
    ],
)
def test_other_records_are_other_data(one: list[Any], other: list[Any]) -> None:
    assert content_of(one) == content_of(list(one))
    assert content_of(one) != content_of(other)


def test_records_that_are_others_each_time_count_by_their_number() -> None:
    class Noisy(list[int]):
        def __getitem__(self, at: Any) -> Any:
            return random.random()

    class Unreadable:
        def __array__(self) -> None:
            raise RuntimeError("on a GPU")

    assert content_of(Noisy([1, 2])) == content_of(Noisy([1, 2])) != content_of(Noisy([1]))
    assert content_of([object()]) == content_of([object()])
    assert content_of([Unreadable()]) == content_of([Unreadable()]) != content_of([])


def test_a_record_is_the_same_text_in_every_process() -> None:
    code = "from pliant.model_modules.facts import content_of; print(content_of([{'a', 'b', 'c', 'd'}, {'x': 1}]))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_a_description_shows_the_last_part_of_a_name() -> None:
    assert described("s3://user:secret@bucket/data/", "1").startswith("data (")
    assert len(described("a" * 500, "1")) < 110
