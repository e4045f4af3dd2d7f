"""The log of a run has every committed step once, whichever member writes it."""

import csv
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pliant.torch as pliant
from pliant.errors import BadInput
from pliant.train.live.run import LiveRun
from pliant.train.live.step_log import CSV_FILE, KEPT_MAX, StepLog, _checksum


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / CSV_FILE).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def steps(folder: Path) -> list[int]:
    return [int(row["step"]) for row in rows(folder)]


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Decode a protocol buffer: number and value of each field."""

    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        match key & 7:
            case 0:
                yield key >> 3, varint()
            case 1:
                yield key >> 3, struct.unpack_from("<d", message, at)[0]
                at += 8
            case 2:
                length = varint()
                yield key >> 3, message[at : at + length]
                at += length
            case _:
                yield key >> 3, struct.unpack_from("<f", message, at)[0]
                at += 4


def shown(folder: Path) -> dict[str, dict[int, float]]:
    """Return what TensorBoard shows of a folder: files in the order of their names; a new start purges later steps."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            assert content[at + 8 : at + 12] == _checksum(content[at : at + 8])
            record = content[at + 12 : at + 12 + length]
            assert content[at + 12 + length : at + 16 + length] == _checksum(record)
            at += 16 + length
            event = dict(fields(record))
            step = event.get(2, 0)
            if 7 in event:
                found = {tag: {s: v for s, v in series.items() if s < step} for tag, series in found.items()}
            for _, value in fields(event.get(5, b"")):
                parts = dict(fields(value))
                assert step not in found.setdefault(parts[1].decode(), {})
                found[parts[1].decode()][step] = parts[2]
    return found


def test_the_checksum_is_that_of_a_record() -> None:
    """The check value of CRC-32C, masked."""
    crc = 0xE3069283
    assert _checksum(b"123456789") == struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


Member = Callable[[int | None], StepLog]


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    """Make the log of a member that began with this base, or joined later."""
    made: list[StepLog] = []

    def make(base: int | None) -> StepLog:
        made.append(StepLog(tmp_path))
        if base is not None:
            made[-1].roll_back(base)
        return made[-1]

    yield make
    for log in made:
        log.close()


def applied(log: StepLog, *numbers: int, loss: float = 1.0) -> None:
    for step in numbers:
        log.add(step, 0, {"loss": loss / step})


def test_a_step_is_written_once_it_is_committed(tmp_path: Path, member: Member) -> None:
    log = member(0)
    applied(log, 1, 2, 3)
    log.note({"rate": 0.5})
    log.write(2)
    assert steps(tmp_path) == [1, 2]
    log.write(3)
    log.close()
    assert [(row["step"], row["loss"], row["rate"]) for row in rows(tmp_path)] == [
        ("1", "1.0", ""),
        ("2", "0.5", ""),
        ("3", repr(1 / 3), "0.5"),
    ]
    assert shown(tmp_path)["loss"] == {1: 1.0, 2: 0.5, 3: pytest.approx(1 / 3)}
    assert shown(tmp_path)["rate"] == {3: 0.5}


@pytest.mark.parametrize("written", [0, 2, 4])
def test_another_member_continues_where_rank_0_was(tmp_path: Path, member: Member, written: int) -> None:
    """Killed after any row: no step is missing or there twice."""
    first, second = member(0), member(0)
    for log in (first, second):
        applied(log, 1, 2, 3, 4)
    first.write(written)
    applied(second, 5)
    second.write(5)
    assert steps(tmp_path) == [1, 2, 3, 4, 5]
    assert sorted(shown(tmp_path)["loss"]) == [1, 2, 3, 4, 5]


def test_a_member_that_joined_later_continues_too(tmp_path: Path, member: Member) -> None:
    first, joiner = member(0), member(None)
    applied(first, 1, 2, 3)
    first.write(3)
    applied(joiner, 3, 4)
    joiner.write(4)
    assert steps(tmp_path) == [1, 2, 3, 4]


def test_a_torn_line_is_written_again(tmp_path: Path, member: Member) -> None:
    first, second = member(0), member(0)
    for log in (first, second):
        applied(log, 1, 2, 3)
    first.write(2)
    with (tmp_path / CSV_FILE).open("a", encoding="utf-8") as file:
        file.write("3,0,17")
    second.write(3)
    assert steps(tmp_path) == [1, 2, 3]


def test_after_a_rollback_lost_steps_are_replaced(tmp_path: Path, member: Member) -> None:
    before = member(0)
    applied(before, 1, 2, 3, 4)
    before.write(4)
    after = member(2)
    applied(after, 3, loss=9.0)
    after.write(3)
    assert [(row["step"], row["loss"]) for row in rows(tmp_path)] == [("1", "1.0"), ("2", "0.5"), ("3", "3.0")]
    assert shown(tmp_path)["loss"] == {1: 1.0, 2: 0.5, 3: 3.0}


def test_a_member_that_lacks_rows_since_the_rollback_removes_none(tmp_path: Path, member: Member) -> None:
    one, other = member(0), member(0)
    for log in (one, other):
        for step in range(1, KEPT_MAX + 6):
            applied(log, step)
            if log is one:
                log.write(step)
    other.write(KEPT_MAX + 5)
    assert steps(tmp_path) == list(range(1, KEPT_MAX + 6))


@dataclass
class Standing:
    """The facts of a member that its log depends on."""

    rank: int
    released_by: int = 0


def ended_run(folder: Path, standing: Standing, committed: int) -> LiveRun:
    """Return a run on a member that leaves within the iterator, where its world has just changed."""
    loop = SimpleNamespace(
        session=SimpleNamespace(machine=standing), committed_step=committed, restored_to=None, step=0
    )
    run = LiveRun.__new__(LiveRun)
    run._loop = loop  # type: ignore[assignment]
    run._step_log = StepLog(folder)
    run.rank = 1  # of the last item
    return run


def test_a_member_that_became_rank_0_as_it_left_writes_what_rank_0_had_not(tmp_path: Path, member: Member) -> None:
    before = member(0)
    applied(before, 1, 2)
    before.write(1)
    run = ended_run(tmp_path, Standing(rank=0), committed=2)
    assert run._step_log is not None
    applied(run._step_log, 1, 2)
    run._close_log()
    assert steps(tmp_path) == [1, 2]


def test_a_member_that_was_released_does_not_open_a_log_that_another_one_writes(tmp_path: Path, member: Member) -> None:
    after = member(0)
    applied(after, 1, 2)
    after.write(2)
    run = ended_run(tmp_path, Standing(rank=0, released_by=2), committed=1)
    assert run._step_log is not None
    run._step_log.roll_back(0)
    applied(run._step_log, 1)
    run._close_log()
    applied(after, 3)
    after.write(3)
    assert steps(tmp_path) == [1, 2, 3]


def train(folder: Path, data: TensorDataset) -> None:
    model = nn.Linear(4, 1)
    with pliant.join() as job:
        run = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=4, epochs=2)
        run.log_to(folder)
        for (x,) in run:
            loss = model(x).square().mean()
            run.log(loss=loss)
            run.backward(loss)
            if run.step():
                run.note(rate=0.1)
        with pytest.raises(BadInput, match="before the loop"):
            run.log_to(folder)


def test_a_run_alone_has_all_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLIANT_COORDINATOR", raising=False)
    for _ in range(2):  # a second run from the beginning replaces the first
        train(tmp_path / "runs" / "a", TensorDataset(torch.randn(12, 4)))
        found = rows(tmp_path / "runs" / "a")
        assert [(row["step"], row["epoch"]) for row in found] == [
            (str(step), str(int(step > 3))) for step in range(1, 7)
        ]
        assert all(float(row["loss"]) > 0 and row["rate"] == "0.1" for row in found)
        assert sorted(shown(tmp_path / "runs" / "a")["loss"]) == list(range(1, 7))
