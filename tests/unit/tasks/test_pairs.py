"""Pair averaging in one process: arrays, saved means, and two members that average with each other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import pliant.tasks
from e2e.running import wait_for
from pliant.core.model.job import Job, JobSpec, JobState, Target
from pliant.core.model.names import MemberId
from pliant.core.model.view import View, view_of
from pliant.core.tasks.model import ModelPeers
from pliant.errors import BadInput, PliantError
from pliant.tasks.means import Array, new_name, read_mean, remove_before, write_mean
from pliant.tasks.pairs import PairAveraging, WritableArrays, averaged_model, model_terms
from pliant.train.checkpoint.storage import Storage, open_storage
from pliant.wire.views import PeerKey

A, B = MemberId("a"), MemberId("b")
KEY = PeerKey(2, "ab" * 32)


def model(value: float) -> list[Array]:
    return [np.full((2, 3), value, np.float32), np.array(value), np.zeros((0, 4), np.float16)]


def values(arrays: list[Array]) -> list[float]:
    return [float(arrays[0][0, 0]), float(arrays[1])]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(tmp_path)


# ------------------------------------------------------------------------------------------------ saved means


def test_a_mean_is_read_as_it_was_written(storage: Storage) -> None:
    name = new_name(3)
    write_mean(storage, name, model(1.5))
    found = read_mean(storage, name, model(0.0))
    assert [(each.dtype, each.shape) for each in found] == [(each.dtype, each.shape) for each in model(0.0)]
    assert values(found) == [1.5, 1.5]
    with pytest.raises(BadInput, match="other arrays than this model"):
        read_mean(storage, name, [model(0.0)[1], *model(0.0)[1:]])


def test_a_damaged_mean_is_found(storage: Storage, tmp_path: Path) -> None:
    write_mean(storage, "mean-00000001-00000000", model(1.5))
    path = tmp_path / "mean-00000001-00000000" / "arrays.npz"
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="is damaged"):
        read_mean(storage, "mean-00000001-00000000", model(0.0))


def test_a_mean_that_cannot_be_written_leaves_nothing(storage: Storage) -> None:
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_mean(storage, new_name(1), [np.array([None])])
    assert storage.unfinished_names() == []


def test_old_means_are_removed_and_nothing_else(storage: Storage) -> None:
    for name in (*map(new_name, (1, 2, 2, 3)), "mine"):
        write_mean(storage, name, model(0.0))
    remove_before(storage, 3)
    assert [name[:13] for name in storage.unfinished_names()] == ["mean-00000003", "mine"]


# ----------------------------------------------------------------------------------------------- what is given


@pytest.mark.parametrize("given", [[], [np.arange(3)], [1.0]])
def test_a_model_has_arrays_of_floating_point_numbers(given: list[Array]) -> None:
    with pytest.raises(BadInput, match="arrays of floating point numbers"):
        averaged_model(given)


def test_models_of_other_shapes_have_other_terms() -> None:
    found = {model_terms(WritableArrays(each)) for each in (model(1.0), model(2.0), model(1.0)[:2])}
    assert len(found) == 2


def test_a_worker_alone_keeps_its_model() -> None:
    own = model(1.0)
    with pliant.tasks.join() as job:
        run = job.train(range(6), batch_size=2, records_per_shard=4, average=own)
        for batch in run:
            own[0] += len(batch)
            run.average()
    assert run.complete
    assert values(own) == [7.0, 1.0]


def test_every_batch_is_averaged() -> None:
    def forget() -> None:
        with pliant.tasks.join() as job:
            for _ in job.train(range(6), batch_size=2, records_per_shard=4, average=model(1.0)):
                pass

    with pytest.raises(BadInput, match=r"Call run.average\(\) after the optimizer's step"):
        forget()


def test_a_run_without_a_model_does_not_average() -> None:
    with pliant.tasks.join() as job, pytest.raises(BadInput, match="does not average models"):
        job.train(range(6), batch_size=2, records_per_shard=4).average()


def test_averaging_needs_frequent_saves_and_no_tables() -> None:
    with pliant.tasks.join() as job, pytest.raises(BadInput, match="at most half of deadline_s"):
        job.train(range(6), batch_size=2, records_per_shard=4, average=model(1.0), save_every_s=200.0)


# ------------------------------------------------------------------------------------------------- two members


@dataclass
class Queue:
    """A member's queue. What it saves is what the coordinator stores."""

    peers: ModelPeers
    member: PairAveraging | None = None
    unsaved: tuple[int, ...] = ()
    waits: bool = True
    saved: tuple[int, ...] = ()

    def wait_for(self, ready: Callable[[], bool]) -> None:
        wait_for(ready, "what it waits for", 10.0)

    def wake(self) -> None:
        """Let `wait_for` look again, as it does anyway."""

    def save(self, number: int, name: str, attempts: tuple[int, ...]) -> None:
        self.peers = replace(self.peers, saves=number, saved=name)
        self.saved = attempts


def view_with(peers: ModelPeers, state: JobState = JobState.RUNNING) -> View:
    job = Job("demo", JobSpec(1, 2), Target(2))
    return replace(view_of(job, 1, A), state=state, model_peers=peers)


class Two:
    """Two members, of which the first one saves."""

    def __init__(self, storage: Storage) -> None:
        self.models = {A: model(1.0), B: model(5.0)}
        self.members = {
            name: PairAveraging(WritableArrays(own), name, 0, storage, 0.2, "127.0.0.1", None)
            for name, own in self.models.items()
        }
        self.peers = ModelPeers(2, (A, B), tuple(each.address for each in self.members.values()), 0, "")
        self.queues = {name: Queue(self.peers) for name in (A, B)}
        for name, member in self.members.items():
            member.start(self.queues[name])
        self.show()

    def show(self, state: JobState = JobState.RUNNING) -> None:
        for member in self.members.values():
            member.follow(view_with(self.peers, state), (KEY,))

    def stored(self, number: int) -> None:
        """Wait until the first member saved this mean, and let both see it."""
        wait_for(lambda: self.queues[A].peers.saves == number, f"save {number}", 10.0)
        self.peers = self.queues[A].peers
        self.show()

    def begin(self) -> None:
        self.stored(1)
        for member in self.members.values():
            member.begin()


@pytest.fixture
def two(storage: Storage) -> Iterator[Two]:
    it = Two(storage)
    yield it
    for member in it.members.values():
        member.close()


def test_all_begin_with_the_model_of_the_first_and_end_with_the_last_mean(two: Two) -> None:
    two.begin()
    assert [values(two.models[name]) for name in (A, B)] == [[1.0, 1.0], [1.0, 1.0]]
    two.models[A][0] += 2.0
    two.models[B][0] += 4.0
    for name in (A, B):
        two.members[name].average()
        two.queues[name].unsaved = (7,) if name == A else (8, 9)
    two.stored(2)
    assert two.queues[A].saved == (7, 8, 9)
    two.show(JobState.FINISHED)
    for name in (A, B):
        two.members[name].finish()
        assert values(two.models[name]) == [4.0, 1.0]


def test_a_step_keeps_its_length_and_the_model_moves_half_of_the_way_to_a_partner(two: Two) -> None:
    two.begin()
    two.models[B][0] += 4.0
    two.members[B].average()  # 5, published
    two.members[A].average()  # asks for it
    wait_for(lambda: two.members[A]._fetched is not None, "the model of b", 10.0)
    two.models[A][0] += 1.0
    two.members[A].average()
    assert values(two.models[A]) == [1.0 + (5.0 - 1.0) / 2 + 1.0, 1.0]
    assert two.members[A].averaged == 1


def test_a_copy_is_averaged_with_once(two: Two) -> None:
    two.begin()
    for _ in range(20):
        two.members[A].average()
        wait_for(lambda: two.members[A]._partner is None, "the answer", 10.0)
    assert two.members[A].averaged <= 1


def test_a_member_that_was_not_in_a_mean_averages_with_it_and_is_in_the_next(two: Two) -> None:
    two.begin()
    two.queues[A].unsaved = (7,)
    two.stored(2)
    two.queues[A].unsaved, two.queues[B].unsaved = (), (8,)
    two.members[A].on_wake()
    wait_for(lambda: two.members[B]._mean is not None, "the mean", 10.0)
    assert two.queues[A].peers.saves == 2  # the model of b has the base 1
    two.members[B].on_wake()
    two.members[A].on_wake()
    two.stored(3)
    assert two.queues[A].saved == (8,)


def test_a_model_that_is_not_finite_is_not_published(two: Two) -> None:
    two.begin()
    two.models[A][0][0, 0] = np.nan
    with pytest.raises(PliantError, match="not finite"):
        two.members[A].average()


def test_storage_that_one_member_does_not_share_ends_the_wait_for_a_model(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pliant.tasks.pairs.STORAGE_PATIENCE_S", 0.0)
    two.peers = replace(two.peers, saves=4, saved="mean-00000004-elsewhere")
    two.show()
    with pytest.raises(PliantError, match="All workers of the job need one folder"):
        two.members[B].begin()


def test_a_member_whose_means_cannot_be_used_any_more_does_not_train_on(two: Two, storage: Storage) -> None:
    """Its shards are done with a saved mean, so it would hold them for ever."""
    two.begin()
    name = new_name(2)
    write_mean(storage, name, model(0.0)[::-1])
    two.peers = replace(two.peers, saves=2, saved=name)
    two.show()
    wait_for(lambda: two.members[B]._failure is not None, "the failure", 10.0)
    for going_on in (two.members[B].average, two.members[B].on_wake):
        with pytest.raises(PliantError, match="has other arrays than this model"):
            going_on()
