"""`pliant checkpoints`, `verify` and `export` of a job: which checkpoints count is said by its coordinator."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import JobSpec, Target
from pliant.core.model.names import AgentId, MemberId
from pliant.train.checkpoint import open_storage
from pliant.train.checkpoint.storage import MANIFEST_FILE
from unit.cli.program import Done, Running, coordinator, invoke
from unit.core.build import TERMS, lines
from unit.train.checkpoint.states import publish, training, write

A, X = MemberId("a"), AgentId("x")
LINES = lines(GENESIS, 1, 3)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """One for each test: each has the one job."""
    with coordinator(tmp_path / "home") as found:
        yield found


@pytest.fixture
def where(running: Running) -> Path:
    """Return where the job keeps its checkpoints; three of its steps are durable."""
    with running.client() as client:
        for command in (
            m.Create("demo", JobSpec(1, 4, Target(1))),
            m.AgentJoin(X, 4),
            m.Join(A, X, TERMS),
            m.Report(A, 0, 1, LINES, frozenset({A})),
        ):
            client.send("demo", command)
    place = running.home / "jobs" / "demo" / "checkpoints"
    place.mkdir(parents=True)
    return place


def counted(running: Running, checkpoint: Checkpoint) -> Checkpoint:
    """Say it to the coordinator."""
    with running.client() as client:
        client.send("demo", m.Publish(A, 1, checkpoint))
        assert client.job("demo").checkpoint == checkpoint
    return checkpoint


def test_the_coordinator_says_which_one_counts(pliant: Callable[..., Done], running: Running, where: Path) -> None:
    place = open_storage(where)
    counted(running, publish(place, "g1-s2", training(seed=2), 1, LINES[1].lineage))
    publish(place, "g1-s3", training(seed=3), 1, LINES[2].lineage)  # of a world that no member knows of
    said = pliant("checkpoints", "demo", "--json").json
    assert (said["job"], said["storage"]) == ("demo", str(where))
    assert [(each["name"], each["retention"]) for each in said["checkpoints"]] == [("g1-s2", "newest"), ("g1-s3", "")]
    assert "newest, complete" in pliant("checkpoints", "demo").out
    assert pliant("export", "demo", "--out", str(where / "../out")).out.startswith("g1-s2, step 2:")
    assert pliant("export", "demo", "g1-s3", "--out", str(where / "../out3")).out.startswith("g1-s3, step 3:")


def test_those_that_are_kept_are_tried_in_turn(pliant: Callable[..., Done], running: Running, where: Path) -> None:
    place = open_storage(where)
    for at in range(2):
        counted(running, publish(place, f"g1-s{at + 1}", training(seed=at), 1, LINES[at].lineage))
    with running.client() as client:
        kept = [each.name for each in client.job("demo").older_checkpoints]
    assert kept == ["g1-s1"]
    counts = {each["name"]: each["retention"] for each in pliant("checkpoints", "demo", "--json").json["checkpoints"]}
    assert counts == {"g1-s2": "newest", "g1-s1": "kept"}
    piece = where / "g1-s2" / "0-of-1-m-0.safetensors"
    piece.write_bytes(piece.read_bytes()[:-1] + b"\x55")
    done = pliant("export", "demo", "--out", str(where / "../out"))
    assert (done.code, done.out.splitlines()[0]) == (0, "g1-s1, step 1:")
    assert "g1-s2/0-of-1-m-0.safetensors is damaged" in done.err
    assert pliant("verify", "demo").code == 1


def test_the_manifest_of_the_store_is_enough(pliant: Callable[..., Done], running: Running, where: Path) -> None:
    """The member that was to write the file beside the pieces was killed: the checkpoint counts all the same."""
    place = open_storage(where)
    counted(running, Checkpoint(LINES[0].lineage, "g1-s1", 7, write(place, "g1-s1", training())))
    assert place.checkpoint_names() == []
    assert pliant("checkpoints", "demo", "--json").json["checkpoints"][0]["ok"]
    assert pliant("verify", "demo").out.startswith("g1-s1, step 1")
    assert pliant("export", "demo", "--out", str(where / "../out")).code == 0


def test_a_checkpoint_that_counts_and_is_gone_is_damage(
    pliant: Callable[..., Done], running: Running, where: Path
) -> None:
    place = open_storage(where)
    counted(running, publish(place, "g1-s1", training(), 1, LINES[0].lineage))
    place.remove("g1-s1")
    assert "g1-s1/0-of-1-m-0.safetensors is damaged: the file is missing" in pliant("checkpoints", "demo").out
    done = pliant("verify", "demo")
    assert (done.code, done.out.count("the file is missing")) == (1, 2)


def test_without_a_coordinator_the_files_speak(
    pliant: Callable[..., Done], running: Running, where: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(open_storage(where), "g1-s1", training(), 1, LINES[0].lineage)
    running.process.kill()
    running.process.wait()
    done = pliant("checkpoints", "demo")
    assert (done.code, "g1-s1" in done.out) == (0, True)
    assert "did not report which ones the job keeps" in done.err
    monkeypatch.setenv("PLIANT_JOB", "demo")
    assert "g1-s1" in pliant("checkpoints").out


def test_a_job_may_keep_them_elsewhere(
    pliant: Callable[..., Done], running: Running, where: Path, tmp_path: Path
) -> None:
    publish(open_storage(tmp_path / "elsewhere"), "g1-s1", training(), 1, LINES[0].lineage)
    (where / "../checkpoints-at").write_text(f"{tmp_path / 'elsewhere'}\n")
    assert pliant("checkpoints", "demo", "--json").json["storage"] == str(tmp_path / "elsewhere")
    (where / "../checkpoints-at").write_text("\n")
    assert pliant("checkpoints", "demo", "--json").json["storage"] == str(where)
    assert not (where / MANIFEST_FILE).exists()


def test_a_job_has_the_name_before_a_folder_has(
    pliant: Callable[..., Done], running: Running, where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert pliant("checkpoints", "demo", "--json").json["job"] == "demo"
    assert pliant("checkpoints", "./demo", "--json").json["job"] is None


def test_help_says_what_may_be_named() -> None:
    assert "JOB|PLACE" in invoke("export", "--help").out
