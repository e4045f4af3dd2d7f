"""Redis streams that real workers train on while producers add to them, through a kill and a trimmed stream."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.launched import Launched, kill
from e2e.redis_server import RedisServer, redis_server
from e2e.running import wait_for
from unit.cli.program import environment, real

STREAMS = ("clicks-0", "clicks-1", "clicks-2")
# Each worker appends the offsets of the records that it processed, one batch at a time.
SCRIPT = """
import os, sys
import pliant.tasks
from pliant.records import open_redis_streams

data = open_redis_streams(os.environ["QUEUE_URL"], sys.argv[2:], complete_key="clicks-complete")
with pliant.tasks.join() as job:
    run = job.train(data, batch_size=5, records_per_shard=20)
    with open(os.path.join(sys.argv[1], job.member), "a", buffering=1) as file:
        for batch in run:
            offsets = [(each.partition, offset) for each in run.offsets for offset in range(each.start, each.stop)]
            for (name, offset), record in zip(offsets, batch, strict=True):
                assert record[b"of"].decode() == name
            file.write("".join(f"{name} {offset}\\n" for name, offset in offsets))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as found:
        yield found


def processed(out: Path) -> Counter[tuple[str, int]]:
    lines = (line.split() for file in out.iterdir() for line in file.read_text().splitlines())
    return Counter((name, int(offset)) for name, offset in lines)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_entries_of_streams_are_done_exactly_once_through_a_kill(tmp_path: Path, server: RedisServer) -> None:
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(SCRIPT)
    out.mkdir()
    server.add("clicks-0", 150)
    env = environment(tmp_path)
    options = ("--workers", "1:2", "--target", "2", str(script), str(out), *STREAMS)
    with Launched(tmp_path, *options, QUEUE_URL=server.url) as run:
        run.has_members(2)
        wait_for(lambda: len(processed(out)) >= 140, "all full shards of the first stream", 120)
        server.client.xtrim("clicks-0", minid="0-101", approximate=False)
        server.add("clicks-1", 400)
        server.add("clicks-0", 10)
        wait_for(lambda: len(processed(out)) >= 300, "entries of the second stream", 120)
        kill(sorted(run.members().values())[0])
        server.add("clicks-2", 93)
        wait_for(lambda: len(processed(out)) >= 640, "all full shards of three streams", 120)
        server.client.set("clicks-complete", 1)
        assert run.process.wait(120) == 0
    everything = {(name, at) for name, count in zip(STREAMS, (160, 400, 93), strict=True) for at in range(1, count + 1)}
    done = processed(out)
    assert {*done} == everything
    found = real(env, "audit", "demo", "--json").json
    assert (found["ok"], found["records"], found["awaits_records"]) == (True, 653, False)
    assert sum(done.values()) - 653 <= found["repeated_max"]
    assert "of clicks-1" in real(env, "events", "demo").out


@pytest.mark.long
@pytest.mark.timeout(200)
def test_entries_that_were_trimmed_before_they_were_given_out_fail_the_job(tmp_path: Path, server: RedisServer) -> None:
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(SCRIPT)
    out.mkdir()
    server.add("clicks-0", 40)
    with Launched(tmp_path, "--workers", "1", str(script), str(out), *STREAMS, QUEUE_URL=server.url) as run:
        wait_for(lambda: len(processed(out)) >= 40, "the first entries", 120)
        with server.client.pipeline() as pipeline:
            for _ in range(30):
                pipeline.xadd("clicks-0", {"of": "clicks-0"}, id="0-*")
            pipeline.xtrim("clicks-0", minid="0-51", approximate=False)
            pipeline.execute()
        assert run.process.wait(120) == 1
    assert "offsets 41 to 50 of clicks-0 were dropped before they were given out" in run.output
