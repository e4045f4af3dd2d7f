"""Files that a member writes and removes in a storage: only its own, and nothing that is still needed (rule 17)."""

import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.running import PATIENCE_S, wait_for
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import Lineage
from pliant.core.member.signals import CollectGarbage, Discard, Save, Signal, Snapshot, WriteDone, WriteFailed
from pliant.errors import BadInput
from pliant.torch.state.training_state import TrainingState
from pliant.train.checkpoint import open_storage, owner_name
from pliant.train.checkpoint.storage import MANIFEST_FILE, OWNER_FILE
from pliant.train.live import checkpointing as shelves
from pliant.train.live.checkpointing import MemberCheckpoints
from unit.threads import daemons, in_daemon, started_threads
from unit.torch.saved import publish, state_of, trained

NAMES = [f"step-{step}-g1-0000000000000001-w1" for step in (1, 2, 3)]
NEW = "step-4-g1-0000000000000001-w1"
NEWER = "step-5-g1-0000000000000001-w1"


class Desk:
    """A shelf in a place, for a job that was created then, and what it said."""

    def __init__(self, where: Path, born: float) -> None:
        self.place = open_storage(where)
        self.heard: list[Signal] = []
        self.shelf = MemberCheckpoints(
            state_of(*trained(3)), self.place, "demo", "a", Grid(8, 2, 2, 1), goes_back=False
        )
        self.shelf.feed = self.heard.append
        self.shelf.claim_storage(lambda: owner_name(born))

    def begin(self, name: str = NEW) -> None:
        self.shelf.start_write(Snapshot(Lineage(1, 4, 1), name, 0, 1))

    def write(self, name: str = NEW) -> Signal:
        self.begin(name)
        self.shelf.commit(Save(name))
        wait_for(lambda: self.heard, "an answer")
        return self.heard.pop()

    def tidied(self, order: CollectGarbage | Discard) -> list[str]:
        """Return what is left after that, and after everything else."""
        self.shelf.collect_garbage(order)
        self.shelf.close()
        return sorted((*self.place.checkpoint_names(), *self.place.unfinished_names()))


Sit = Callable[[float], Desk]
OURS, THEIRS = 1.8e9, 1.7e9  # when each was created


@pytest.fixture
def sit(tmp_path: Path) -> Iterator[Sit]:
    """Gives a desk for a job that was created then, and closes it in the end."""
    taken: list[Desk] = []

    def at(born: float) -> Desk:
        taken.append(Desk(tmp_path, born))
        return taken[-1]

    yield at
    for desk in taken:
        desk.shelf.close()


@pytest.fixture
def three(tmp_path: Path) -> CollectGarbage:
    """Three checkpoints of two parts each are there, and the first is not needed any more."""
    state = state_of(*trained(3)).capture()
    newest = [publish(tmp_path, state, 2, name) for name in NAMES][-1]
    return CollectGarbage(newest, (), tuple(NAMES[1:]), history_from_generation=0, rollback_generation=1, generation=1)


def test_what_is_old_goes_when_the_newest_is_whole(sit: Sit, three: CollectGarbage) -> None:
    assert sit(OURS).tidied(three) == NAMES[1:]


def test_one_that_cannot_be_removed_stays_and_the_other_old_ones_go(
    sit: Sit, three: CollectGarbage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = sit(OURS)
    remove = desk.place.remove

    def refuse_first(name: str) -> None:
        if name == NAMES[0]:
            raise PermissionError(errno.EACCES, "Permission denied")
        remove(name)

    monkeypatch.setattr(desk.place, "remove", refuse_first)
    assert desk.tidied(replace(three, kept_checkpoints=(NAMES[2],))) == [NAMES[0], NAMES[2]]
    assert f"{NAMES[0]} in {desk.place.location} could not be removed: Permission denied" in caplog.text


def test_if_a_part_of_the_newest_is_nowhere_to_be_seen_nothing_goes_and_it_is_said(
    sit: Sit, three: CollectGarbage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on another machine's disk, which looks like this one since it was copied from it."""
    monkeypatch.setattr(shelves, "SEEN_S", 0.0)
    (tmp_path / NAMES[2] / three.newest.pieces[-1].file).unlink()
    desk = sit(OURS)
    desk.shelf.collect_garbage(three)
    wait_for(lambda: desk.heard, "its word")
    assert desk.heard == [WriteFailed(NAMES[2], str(tmp_path), split_storage=True)]
    assert desk.tidied(Discard(NEW)) == NAMES


def test_a_part_that_is_seen_late_is_waited_for(
    sit: Sit, three: CollectGarbage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a folder that is shared, where each machine remembers what it saw last."""
    monkeypatch.setattr(shelves, "LOOK_S", 0.01)
    part = tmp_path / NAMES[2] / three.newest.pieces[-1].file
    part.rename(tmp_path / "elsewhere")
    desk = sit(OURS)
    desk.shelf.collect_garbage(three)
    (tmp_path / "elsewhere").rename(part)
    wait_for(lambda: desk.place.checkpoint_names() == NAMES[1:], "the first to go")
    assert desk.heard == []


def test_that_parts_are_elsewhere_is_found_though_each_is_the_newest_for_a_moment_only(
    sit: Sit, three: CollectGarbage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that saves often has a newer checkpoint before the check of the last one is over."""
    monkeypatch.setattr(shelves, "LOOK_S", 0.01)
    monkeypatch.setattr(shelves, "SEEN_S", 0.2)
    (tmp_path / NAMES[2] / three.newest.pieces[-1].file).unlink()
    desk = sit(OURS)

    def saves_again() -> bool:
        desk.shelf.collect_garbage(replace(three))
        return bool(desk.heard)

    wait_for(saves_again, "its word")
    assert desk.heard[0] == WriteFailed(NAMES[2], str(tmp_path), split_storage=True)
    assert desk.place.checkpoint_names() == NAMES


def test_one_that_is_not_the_newest_any_more_has_its_manifest_all_the_same(
    sit: Sit, three: CollectGarbage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two became the newest while the one before them was being looked for."""
    monkeypatch.setattr(shelves, "LOOK_S", 0.01)
    orders = [replace(three, newest=replace(three.newest, name=name), kept_checkpoints=tuple(NAMES)) for name in NAMES]
    (tmp_path / NAMES[0] / three.newest.pieces[-1].file).unlink()
    for name in NAMES:
        (tmp_path / name / MANIFEST_FILE).unlink()
    desk = sit(OURS)
    for order in orders:
        desk.shelf.collect_garbage(order)
    desk.shelf.close()
    assert desk.place.checkpoint_names() == NAMES[1:]


def test_who_goes_has_a_moment_for_what_it_cannot_see_yet(
    sit: Sit, three: CollectGarbage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the last checkpoint would have no manifest beside its files."""
    monkeypatch.setattr(shelves, "LOOK_S", 0.01)
    part = tmp_path / NAMES[2] / three.newest.pieces[-1].file
    part.rename(tmp_path / "elsewhere")
    (tmp_path / NAMES[2] / MANIFEST_FILE).unlink()
    desk = sit(OURS)
    desk.shelf.collect_garbage(three)
    leaving = threading.Thread(target=desk.shelf.close)
    leaving.start()
    (tmp_path / "elsewhere").rename(part)
    leaving.join()
    assert desk.place.checkpoint_names() == NAMES[1:]


def test_who_goes_does_not_wait_for_ever_for_what_it_cannot_see(
    sit: Sit, three: CollectGarbage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelves, "LAST_LOOK_S", 0.0)
    (tmp_path / NAMES[2] / three.newest.pieces[-1].file).unlink()
    desk = sit(OURS)
    assert desk.tidied(three) == NAMES
    assert desk.heard == [], "perhaps it would have come"


# ------------------------------------------------------------------------------------------------- whose it is


def test_where_one_job_saves_another_of_that_name_does_not(sit: Sit) -> None:
    """The same name and the same place, and another PLIANT_HOME. The first one's first save may be hours away."""
    sit(THEIRS)
    with pytest.raises(
        BadInput, match="holds the checkpoints of another job of this name, created 2023-11-14T22:13:20"
    ):
        sit(OURS)
    assert isinstance(sit(THEIRS).write(NEWER), WriteDone)


def test_if_the_place_is_another_jobs_meanwhile_nothing_counts_and_nothing_is_removed(
    sit: Sit, three: CollectGarbage, tmp_path: Path
) -> None:
    """A member moved what was there away, and began another job."""
    first = sit(OURS)
    (tmp_path / OWNER_FILE).unlink()
    assert isinstance(sit(THEIRS).write(), WriteDone)
    refused = first.write(NEWER)
    assert isinstance(refused, WriteFailed)
    assert "holds the checkpoints of another job of this name" in refused.why
    first.shelf.collect_garbage(three)
    assert first.tidied(Discard(NEW)) == [*NAMES, NEW, NEWER]


def test_a_job_that_does_not_say_when_it_was_created_saves_where_nobody_said_so_either(sit: Sit) -> None:
    assert isinstance(sit(0.0).write(), WriteDone)
    assert isinstance(sit(OURS).write(NEWER), WriteDone)


@pytest.mark.parametrize("content", [b"\xff\xfe", b""])
def test_a_mark_that_makes_no_sense_is_somebodys_or_nobodys_and_no_crash(
    sit: Sit, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / OWNER_FILE).write_bytes(content)
    assert isinstance(sit(OURS).write(), WriteDone)


def test_a_place_that_cannot_be_read_yet_is_no_reason_to_stay_away(sit: Sit, tmp_path: Path) -> None:
    tmp_path.rmdir()
    tmp_path.touch()
    assert isinstance(sit(OURS).write(), WriteFailed)


# --------------------------------------------------------------------------------------------------- given up


def test_what_will_never_be_whole_is_removed(sit: Sit, three: CollectGarbage) -> None:
    assert sit(OURS).tidied(Discard(NAMES[2])) == NAMES[:2]


def test_what_is_being_written_is_written_no_further(sit: Sit, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, copy = threading.Event(), TrainingState.copy

    def slow(self: TrainingState, content: memoryview) -> memoryview:
        assert goes_on.wait(PATIENCE_S)
        return copy(self, content)

    monkeypatch.setattr(TrainingState, "copy", slow)
    desk = sit(OURS)
    desk.begin()
    desk.shelf.commit(Save(NEW))
    desk.shelf.collect_garbage(Discard(NEW))
    goes_on.set()
    wait_for(lambda: not any(each.name == "pliant-save" for each in threading.enumerate()), "its thread to end")
    assert (desk.heard, desk.place.unfinished_names()) == ([], [])


def test_what_was_given_up_before_it_was_begun_is_not_begun(sit: Sit) -> None:
    """The training thread had yet to hear of it when every member heard that it will never be whole."""
    desk = sit(OURS)
    desk.shelf.collect_garbage(Discard(NEW))
    desk.begin()
    assert desk.heard == [WriteFailed(NEW, "discarded before it was started")]


def test_another_one_is_written_on(sit: Sit, three: CollectGarbage) -> None:
    desk = sit(OURS)
    desk.begin()
    desk.shelf.collect_garbage(Discard(NAMES[0]))
    desk.shelf.commit(Save(NEW))
    wait_for(lambda: desk.heard, "an answer")
    assert isinstance(desk.heard[0], WriteDone)


def test_a_place_that_is_gone_is_no_trouble_for_who_tidies_up(sit: Sit, three: CollectGarbage, tmp_path: Path) -> None:
    desk = sit(OURS)
    shutil.rmtree(tmp_path)
    tmp_path.touch()
    desk.shelf.collect_garbage(three)
    desk.shelf.collect_garbage(Discard(NEW))
    desk.shelf.close()
    assert desk.heard == []


def test_the_interpreter_waits_for_what_a_daemon_lets_write_and_remove(sit: Sit, three: CollectGarbage) -> None:
    desk = sit(OURS)
    with started_threads() as started:
        in_daemon(lambda: desk.write())
        in_daemon(lambda: desk.tidied(three))
    assert daemons(started, "pliant-save") == [False]
    assert daemons(started, "pliant-collect-garbage") == [False]
