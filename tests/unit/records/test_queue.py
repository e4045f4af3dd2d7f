"""Records of queues: a queue of the user, and streams of a real Redis server."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pliant.tasks
from e2e.redis_server import PASSWORD, RedisServer, redis_server
from pliant.core.tasks.partitions import OffsetRange
from pliant.errors import BadInput
from pliant.records import QueueRecords, open_redis_streams
from pliant.tasks import growth


class Log:
    """A queue of the user, as lists. It keeps records from `kept` on."""

    def __init__(self, **partitions: list[Any]) -> None:
        self.lists, self.kept, self.ended = partitions, 0, False

    def partitions(self) -> dict[str, tuple[int, int]]:
        return {name: (min(self.kept, len(found)), len(found)) for name, found in self.lists.items()}

    def read(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        for offset in range(max(start, self.kept), stop):
            yield offset, self.lists[partition][offset]

    def is_complete(self) -> bool:
        return self.ended


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no coordinator, and look for new records without a pause."""
    monkeypatch.delenv("PLIANT_COORDINATOR", raising=False)
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path))
    monkeypatch.setattr(growth, "LOOK_S", 0.01)


@pytest.mark.usefixtures("alone")
def test_every_record_of_a_queue_comes_once_with_its_offset() -> None:
    log = Log(p=[f"p{at}" for at in range(23)], q=[f"q{at}" for at in range(8)], empty=[])
    log.ended = True
    found = []
    with pliant.tasks.join() as job:
        run = job.train(QueueRecords(log, str.upper), batch_size=4, records_per_shard=10)
        for batch in run:
            offsets = [(each.partition, offset) for each in run.offsets for offset in range(each.start, each.stop)]
            assert [f"{name}{offset}".upper() for name, offset in offsets] == batch
            found += batch
        assert run.complete
    assert sorted(found) == sorted(f"P{at}" for at in range(23)) + sorted(f"Q{at}" for at in range(8))


@pytest.mark.usefixtures("alone")
def test_a_job_goes_on_while_the_queue_grows_and_drops_what_is_done() -> None:
    log, found = Log(p=list(range(20))), []
    with pliant.tasks.join() as job:
        for batch in job.predict(QueueRecords(log), batch_size=5, records_per_shard=10):
            found += batch
            if batch[-1] == 19:
                log.kept = 15
                log.lists["p"] += range(20, 47)
            log.ended = batch[-1] >= 30
    assert found == list(range(47))


@pytest.mark.usefixtures("alone")
def test_records_that_the_queue_dropped_are_named() -> None:
    log = Log(p=list(range(20)))

    def work() -> None:
        with pliant.tasks.join() as job:
            for batch in job.train(QueueRecords(log), batch_size=10, records_per_shard=10):
                assert batch == list(range(10))
                log.kept = 15

    with pytest.raises(BadInput, match="all of offsets 10 to 19 of p any more; it has offsets 15 to 19"):
        work()


def test_a_partition_that_was_set_back_is_refused() -> None:
    log = Log(p=list(range(20)), q=[1])
    records = QueueRecords(log)
    records.grow()
    assert (len(records), records.partitions) == (21, (OffsetRange("p", 0, 20), OffsetRange("q", 0, 1)))
    del log.lists["p"][10:]
    with pytest.raises(BadInput, match="Partition p had records up to offset 19, and now ends before offset 10"):
        records.grow()


@pytest.mark.usefixtures("alone")
def test_a_worker_with_other_data_than_a_queue_is_refused() -> None:
    from pliant.core.model.names import MemberId
    from pliant.core.tasks.model import HeldShard, ShardKind, TaskTerms
    from pliant.tasks.run import TaskRun
    from pliant.tasks.source import LocalQueue

    terms = TaskTerms(0, 10, shuffled=False, growing=True)
    run = TaskRun(LocalQueue(terms, MemberId("a")), terms, {ShardKind.TRAIN: range(10)}, 5, None)
    shard = HeldShard(ShardKind.TRAIN, 0, 1, MemberId("a"), 0, 0, offsets=(OffsetRange("p", 0, 10),))
    with pytest.raises(BadInput, match="Pass the same queue to every worker"):
        list(run.batches(shard))


# ------------------------------------------------------------------------------------------------------- Redis


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as found:
        yield found


def test_streams_are_read_by_offset_over_several_pages(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pliant.records.queues.redis_streams.PAGE", 7)
    server.add("a", 30)
    records = open_redis_streams(server.url, ["a", "b"], complete_key="over", transform=lambda fields: fields[b"of"])
    records.grow()
    assert records.partitions == (OffsetRange("a", 1, 31), OffsetRange("b", 1, 1))
    before = records.complete
    server.client.xtrim("a", maxlen=20, approximate=False)
    server.client.set("over", 1)
    records.grow()
    assert records.partitions[0] == OffsetRange("a", 11, 31)
    assert (before, records.complete) == (False, True)
    assert list(records.read_offsets([OffsetRange("a", 12, 31)])) == [b"a"] * 19
    with pytest.raises(BadInput, match="does not have all of offsets 5 to 14 of a any more; it has offsets 11 to 30"):
        list(records.read_offsets([OffsetRange("a", 5, 15)]))
    server.client.xtrim("a", maxlen=0, approximate=False)
    records.grow()
    assert records.partitions[0] == OffsetRange("a", 31, 31)
    with pytest.raises(BadInput, match="it has none"):
        list(records.read_offsets([OffsetRange("a", 12, 31)]))


def test_a_deleted_entry_is_named(server: RedisServer) -> None:
    server.add("a", 10)
    server.client.xdel("a", "0-4")
    read = open_redis_streams(server.url, ["a"]).read_offsets([OffsetRange("a", 2, 11)])
    assert [next(read), next(read)] == [{b"of": b"a"}] * 2
    with pytest.raises(BadInput, match="all of offsets 4 to 10 of a"):
        next(read)


def test_what_redis_refuses_is_said(server: RedisServer) -> None:
    server.client.xadd("times", {"a": 1})
    with pytest.raises(BadInput, match=r"Add entries with XADD times 0-\*"):
        open_redis_streams(server.url, ["times"]).grow()
    server.client.set("text", 1)
    with pytest.raises(BadInput, match="Redis refused a request: WRONGTYPE"):
        open_redis_streams(server.url, ["text"]).grow()
    with pytest.raises(BadInput, match="Redis refused"):
        open_redis_streams(server.url.replace(PASSWORD, "wrong"), ["a"]).grow()


def test_a_server_that_is_away_is_a_failure_that_may_pass(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pliant.records.queues.redis_streams.RETRIES", 1)
    server.add("a", 3)
    records = open_redis_streams(server.url, ["a"])
    server.close()
    with pytest.raises(OSError, match="Redis is not reached"):
        records.grow()


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda: open_redis_streams("redis://127.0.0.1", []), "one or more streams"),
        (lambda: open_redis_streams("redis://127.0.0.1", ["a", "a"]), "with different names"),
        (lambda: open_redis_streams("http://u:secret@127.0.0.1", ["a"]), "'127.0.0.1' is no URL of a Redis server"),
    ],
)
def test_wrong_arguments_are_refused(act: Callable[[], Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        act()
