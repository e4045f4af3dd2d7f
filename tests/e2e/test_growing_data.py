"""A folder that grows while real workers train on it, through a kill, until it has its mark."""

from collections import Counter
from pathlib import Path

import pytest

from e2e.launched import Launched, kill
from e2e.running import wait_for
from unit.cli.program import environment, real

# Each worker appends the records that it processed, one batch at a time.
SCRIPT = """
import os, sys
import pliant.tasks
from pliant.records import open_records

data = open_records(sys.argv[1], growing=True)
with pliant.tasks.join() as job:
    run = job.train(data, batch_size=5, records_per_shard=20)
    with open(os.path.join(sys.argv[2], job.member), "a", buffering=1) as file:
        for batch in run:
            file.write("".join(f"{record['number']}\\n" for record in batch))
"""
RECORDS_OF_A_FILE = 50


class Folder:
    """The data and the notes of the workers."""

    def __init__(self, base: Path) -> None:
        self.script, self.data, self.out = base / "grow.py", base / "data", base / "out"
        self.script.write_text(SCRIPT)
        self.data.mkdir()
        self.out.mkdir()
        self.files = 0

    def add(self, count: int) -> None:
        """Write files, each whole under its name at once."""
        for _ in range(count):
            numbers = range(RECORDS_OF_A_FILE * self.files, RECORDS_OF_A_FILE * (self.files + 1))
            hidden = self.data / ".writing"
            hidden.write_text("number\n" + "".join(f"{number}\n" for number in numbers))
            hidden.rename(self.data / f"part-{self.files:03}.csv")
            self.files += 1

    def processed(self) -> Counter[int]:
        return Counter(int(line) for file in self.out.iterdir() for line in file.read_text().splitlines())


@pytest.mark.long
@pytest.mark.timeout(300)
def test_files_that_appear_while_workers_train_are_done_exactly_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.add(1)
    env = environment(tmp_path)
    with Launched(
        tmp_path, "--workers", "1:2", "--target", "2", str(folder.script), str(folder.data), str(folder.out)
    ) as run:
        run.has_members(2)
        wait_for(lambda: len(folder.processed()) >= 40, "all full shards of the first file", 120)
        assert "2 of 2 done so far, and the data may grow" in real(env, "status", "demo").out
        folder.add(3)
        wait_for(lambda: len(folder.processed()) >= 200, "the files that were added", 120)
        kill(sorted(run.members().values())[0])
        folder.add(4)
        wait_for(lambda: len(folder.processed()) >= 400, "the files that were added after the kill", 120)
        found = real(env, "audit", "demo", "--json").json
        assert (found["ok"], found["records"], found["awaits_records"]) == (True, 400, True)
        folder.add(1)
        (folder.data / "_SUCCESS").touch()
        assert run.process.wait(120) == 0
    assert sorted(folder.processed()) == list(range(450))
    found = real(env, "audit", "demo", "--json").json
    assert (found["ok"], found["records"], found["shards"], found["awaits_records"]) == (True, 450, 23, False)
    assert sum(folder.processed().values()) - 450 <= found["repeated_max"]
    assert "the data has 450 records, and is complete" in real(env, "events", "demo").out


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_file_that_would_change_the_numbers_of_records_fails_the_job(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.add(1)
    with Launched(tmp_path, "--workers", "1", str(folder.script), str(folder.data), str(folder.out)) as run:
        wait_for(lambda: len(folder.processed()) >= 40, "the first file", 120)
        (folder.data / "a.csv").write_text("number\n7\n")
        assert run.process.wait(120) == 1
    assert "Add files under names that sort after all others" in run.output
