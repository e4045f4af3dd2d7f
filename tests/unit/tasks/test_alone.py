"""A task queue without a coordinator: the loop, its numbers, and what is refused."""

import logging
from pathlib import Path
from typing import Any

import pytest

import pliant.tasks
from pliant.core.model.names import MemberId
from pliant.core.tasks.model import ShardKind, TaskTerms, digest_key, range_digest
from pliant.errors import BadInput, PliantError
from pliant.ps import PushPolicy
from pliant.records import open_records
from pliant.tasks import growth
from pliant.tasks.job import TaskJob
from pliant.tasks.run import TaskRun
from pliant.tasks.source import LocalQueue
from pliant.train.data import order
from unit.records import written


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLIANT_COORDINATOR", raising=False)
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path))


def numbers(run: TaskRun) -> list[int]:
    return [number for batch in run for number in batch]


def test_every_record_of_every_epoch_comes_once_in_batches_of_a_shard() -> None:
    with pliant.tasks.join() as job:
        run = job.train(range(203), batch_size=4, records_per_shard=10, epochs=2, seed=3)
        found = []
        for batch in run:
            assert batch == list(run.numbers)
            assert len(batch) <= 4
            found += [(run.epoch, number) for number in batch]
        assert run.complete
    assert sorted(found) == [(epoch, number) for epoch in range(2) for number in range(203)]
    assert [number for epoch, number in found if epoch == 0] != [number for epoch, number in found if epoch == 1]


def test_evaluations_report_means_over_their_records(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pliant")
    logging.getLogger("pliant").propagate = True
    with pliant.tasks.join() as job:
        run = job.train(range(20), batch_size=3, records_per_shard=10, evaluation=range(7), evaluate_every=1)
        for batch in run:
            if run.evaluating:
                run.add(total=sum(batch))
                run.add(total=0)
    assert caplog.text.count("7 records, total 3") == 2


def test_a_job_can_evaluate_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pliant")
    logging.getLogger("pliant").propagate = True
    with pliant.tasks.join() as job:
        run = job.evaluate(range(7), batch_size=3, records_per_shard=5)
        for batch in run:
            assert run.evaluating
            run.add(total=sum(batch))
    assert run.complete
    assert "evaluation 0 is done: 7 records, total 3" in caplog.text


def test_a_prediction_reads_record_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(written.tfrecord([b"%d" % number for number in range(9)]))
    with pliant.tasks.join() as job:
        run = job.predict(open_records(tmp_path / "a.tfrecord"), batch_size=2, records_per_shard=5, collate=b"".join)
        assert list(run) == [b"01", b"23", b"4", b"56", b"78"]
        assert run.kind is ShardKind.PREDICT


def test_settings_of_the_script_are_terms_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[TaskTerms] = []

    def connect(_: TaskJob, terms: TaskTerms, *__: object) -> tuple[LocalQueue, None]:
        found.append(terms)
        return LocalQueue(terms, MemberId("a")), None

    monkeypatch.setattr(TaskJob, "_connect", connect)
    for kind in ("train", "evaluate", "predict"):
        with pliant.tasks.join() as job:
            getattr(job, kind)(range(5), batch_size=1, records_per_shard=5, extra={"model": "b", "data": "a"})
    assert [terms.extra for terms in found] == [(("data", "a"), ("model", "b"))] * 3


def test_an_exception_in_the_loop_is_the_users_own() -> None:
    def work() -> None:
        with pliant.tasks.join() as job:
            for _ in job.train(range(5), batch_size=2, records_per_shard=5):
                raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        work()


def test_data_that_became_shorter_is_reported() -> None:
    class Shrinking(list[int]):
        def read(self, start: int, stop: int) -> Any:
            return iter(self[start : stop - 1])

    with pliant.tasks.join() as job, pytest.raises(PliantError, match="the data ended at record 4"):
        numbers(job.train(Shrinking(range(5)), batch_size=2, records_per_shard=5))


@pytest.mark.parametrize(
    ("data", "options", "why"),
    [
        (iter(range(3)), {}, "data must have a length and records by number"),
        ([], {}, "data has no records"),
        ([1], {"batch_size": 0}, "batch_size must be 1 or more"),
        ([1], {"records_per_shard": 0}, "records_per_shard must be 1 or more"),
        ([1], {"evaluation": []}, "evaluation has no records"),
        ([1], {"deadline_s": 0}, "deadline_s must be above 0"),
        ([1], {"pushes": PushPolicy(0)}, "grads_to_wait must be 1 or more, got 0"),
    ],
)
def test_a_wrong_argument_is_refused(data: Any, options: dict[str, Any], why: str) -> None:
    with pliant.tasks.join() as job, pytest.raises(BadInput, match=why):
        job.train(data, **{"batch_size": 1, "records_per_shard": 1} | options)


def test_a_job_has_one_run_and_a_coordinator_needs_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with pliant.tasks.join() as job:
        job.train([1], batch_size=1, records_per_shard=1)
        with pytest.raises(BadInput, match="a job has one run"):
            job.predict([1], batch_size=1, records_per_shard=1)
    monkeypatch.setenv("PLIANT_COORDINATOR", "http://127.0.0.1:1")
    monkeypatch.delenv("PLIANT_JOB", raising=False)
    with pytest.raises(BadInput, match="PLIANT_JOB is not"):
        pliant.tasks.join()


def test_the_digest_of_arrays_is_that_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "BLOCK", 7)
    for kind in ShardKind:
        for start, stop in ((0, 0), (0, 7), (3, 40)):
            assert order.digest_range(digest_key(kind, 2), start, stop) == range_digest(kind, 2, start, stop)


class Growth:
    """Data that grows by three records with each look, up to twenty."""

    def __init__(self) -> None:
        self.count, self.complete = 0, False

    def grow(self) -> None:
        self.count = min(self.count + 3, 20)
        self.complete = self.count == 20

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        return number


def test_growing_data_is_worked_through_until_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "LOOK_S", 0.01)
    with pliant.tasks.join() as job:
        run = job.train(Growth(), batch_size=4, records_per_shard=8)
        assert numbers(run) == list(range(20))
        assert run.complete


def test_a_look_that_fails_is_repeated_and_data_that_cannot_be_used_ends_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(growth, "LOOK_S", 0.01)
    faults = iter([OSError("no route"), None, BadInput("part-1 was removed")])

    class Broken(Growth):
        def grow(self) -> None:
            if (fault := next(faults)) is not None:
                raise fault

    with pytest.raises(SystemExit) as end, pliant.tasks.join() as job:
        numbers(job.train(Broken(), batch_size=4, records_per_shard=8))
    assert end.value.code == 1
    assert "part-1 was removed" in str(end.value.why)  # type: ignore[attr-defined]


def test_growing_data_is_not_evaluated_and_has_one_epoch() -> None:
    with pliant.tasks.join() as job, pytest.raises(BadInput, match="an evaluation needs data of a fixed length"):
        job.evaluate(Growth(), batch_size=4, records_per_shard=8)
    with pliant.tasks.join() as job, pytest.raises(BadInput, match="growing data has one epoch"):
        job.train(Growth(), batch_size=4, records_per_shard=8, epochs=2)
