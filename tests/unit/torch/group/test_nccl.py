"""The NCCL group around a communicator that follows a script: errors, breaks at every moment, and threads left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch

from contract.group.worlds import threads_named
from e2e.running import wait_for
from pliant.core.data.ledger import Lineage
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind
from pliant.torch.group import nccl_wiring
from pliant.torch.group.nccl import NcclGroup
from pliant.torch.group.nccl_wiring import NcclWiring
from pliant.train.group.contract import GroupBroken
from pliant.train.peer.kv import PeerValues

pytestmark = pytest.mark.timeout(180)

PATIENCE_S = 60.0
CPU = torch.device("cpu")
KEY = "ab" * 32


class ScriptedWork:
    """An operation that ends, fails or goes on as its communicator says."""

    def __init__(self, communicator: ScriptedCommunicator) -> None:
        self._communicator = communicator

    def is_completed(self) -> bool:
        return self._communicator.is_completed or self._communicator.error is not None

    def wait(self) -> None:
        if self._communicator.error is not None:
            raise RuntimeError(self._communicator.error)


class ScriptedCommunicator:
    """A communicator that behaves as the test sets it, in place of torch's process group on a GPU."""

    def __init__(self) -> None:
        self.is_completed = False
        self.error: str | None = None
        self.may_start = threading.Event()
        self.may_start.set()
        self.may_abort = threading.Event()
        self.may_abort.set()
        self.calls: list[str] = []

    def allreduce(self, _tensors: list[torch.Tensor], _options: object) -> ScriptedWork:
        self.calls.append("start")
        self.may_start.wait(PATIENCE_S)
        return ScriptedWork(self)

    def abort(self) -> None:
        self.may_abort.wait(PATIENCE_S)
        self.calls.append("abort")

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def world_of(*names: str) -> World:
    members = tuple(MemberId(name) for name in names)
    return World(3, WorldKind.PLANNED, members, (1,) * len(members), Lineage(0, 0, 0))


@pytest.fixture
def communicator() -> ScriptedCommunicator:
    return ScriptedCommunicator()


@pytest.fixture
def group(communicator: ScriptedCommunicator) -> NcclGroup:
    return NcclGroup(world_of("a", "b"), 0, CPU, [communicator])


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as found:
        yield found


def calls_at_failure(act: Callable[[], object], communicator: ScriptedCommunicator) -> tuple[str, list[str]]:
    """Return the reason of the `GroupBroken` that `act` raises, and what the communicator had done by then."""
    with pytest.raises(GroupBroken) as caught:
        act()
    return caught.value.why, list(communicator.calls)


# ------------------------------------------------------------------------------------------------- the group


def test_no_wait_raises_before_the_communicator_is_aborted(threads: ThreadPoolExecutor) -> None:
    for _ in range(100):
        communicator = ScriptedCommunicator()
        group = NcclGroup(world_of("a", "b"), 0, CPU, [communicator])
        pending = group.start_all_reduce(torch.zeros(1))
        waiting = threads.submit(calls_at_failure, pending.wait, communicator)
        group.break_off()
        assert waiting.result(PATIENCE_S) == ("generation 3's group was broken off", ["start", "abort"])


def test_an_error_of_nccl_is_no_result_and_is_raised_after_the_abort(
    group: NcclGroup, communicator: ScriptedCommunicator
) -> None:
    pending = group.start_all_reduce(torch.zeros(1))
    communicator.error = "remote process exited\nmore"
    why, calls = calls_at_failure(pending.wait, communicator)
    assert why == "an operation of generation 3 failed: remote process exited"
    assert calls == ["start", "abort"]


def test_an_operation_that_ends_in_a_whole_group_is_done(group: NcclGroup, communicator: ScriptedCommunicator) -> None:
    pending = group.start_all_reduce(torch.zeros(1))
    communicator.is_completed = True
    pending.wait()
    pending.wait()
    assert communicator.calls == ["start"]


def test_an_operation_that_ended_before_its_wait_fails_once_the_group_is_broken(
    group: NcclGroup, communicator: ScriptedCommunicator
) -> None:
    pending = group.start_all_reduce(torch.zeros(1))
    communicator.is_completed = True
    group.break_off()
    assert calls_at_failure(pending.wait, communicator)[1] == ["start", "abort"]


def test_break_off_returns_while_an_operation_cannot_start(
    group: NcclGroup, communicator: ScriptedCommunicator, threads: ThreadPoolExecutor
) -> None:
    communicator.may_start.clear()
    running = threads.submit(calls_at_failure, lambda: group.all_reduce(torch.zeros(1)), communicator)
    wait_for(lambda: communicator.calls, "the operation to start")
    group.break_off()
    assert not running.done()
    assert communicator.calls == ["start"], "the communicator was aborted while torch used it"
    communicator.may_start.set()
    assert running.result(PATIENCE_S)[1] == ["start", "abort"]


def test_a_group_is_destroyed_after_its_abort(group: NcclGroup, communicator: ScriptedCommunicator) -> None:
    communicator.may_abort.clear()
    group.dispose()
    group.dispose()
    assert communicator.calls == []
    communicator.may_abort.set()
    wait_for(lambda: not threads_named("pliant-dispose"), "the group to be destroyed")
    assert communicator.calls == ["abort", "shutdown"]
    with pytest.raises(GroupBroken):
        group.barrier()


def test_a_world_of_one_needs_no_communicator() -> None:
    alone = NcclGroup(world_of("a"), 0, CPU, [])
    tensor = torch.ones(2)
    alone.all_reduce(tensor)
    assert tensor.tolist() == [1.0, 1.0]
    assert alone.gather(b"x") == [b"x"]
    alone.dispose()
    with pytest.raises(GroupBroken):
        alone.gather(b"x")


# ------------------------------------------------------------------------------------------------ the wiring


class Post:
    """Delivers a member's values to the mailboxes of the others."""

    def __init__(self) -> None:
        self.mailboxes: dict[MemberId, PeerValues] = {}

    def notify(self, generation: int, member: MemberId, _kind: str, head: bytes) -> None:
        self.mailboxes[member].receive(generation, head)


@pytest.fixture
def communicators(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedCommunicator]:
    made = [ScriptedCommunicator(), ScriptedCommunicator()]
    monkeypatch.setattr(NcclWiring, "_make_process_group", lambda wiring: made[wiring._rank])
    return made


def wirings(count: int = 2) -> list[NcclWiring]:
    post, world = Post(), world_of("a", "b")
    for member in world.members:
        post.mailboxes[member] = PeerValues()
    return [NcclWiring(world, KEY, member, post, post.mailboxes[member], CPU) for member in world.members[:count]]


def run_all(threads: ThreadPoolExecutor, made: Sequence[NcclWiring]) -> list[Future[NcclGroup]]:
    return [threads.submit(each.run) for each in made]


def end_of(running: Sequence[Future[Any]]) -> list[str]:
    """Return the reasons of the failures, once no thread of the wirings is left."""
    found = []
    for each in running:
        with pytest.raises(GroupBroken) as caught:
            each.result(PATIENCE_S)
        found.append(caught.value.why)
    wait_for(lambda: not threads_named("pliant-"), "the threads to end")
    return found


def test_a_wiring_returns_its_group_after_a_barrier(
    communicators: list[ScriptedCommunicator], threads: ThreadPoolExecutor
) -> None:
    made = wirings()
    running = run_all(threads, made)
    wait_for(lambda: all(each.calls for each in communicators), "the barrier to start")
    assert not any(each.done() for each in running)
    for each in communicators:
        each.is_completed = True
    groups = [each.result(PATIENCE_S) for each in running]
    assert [group.rank for group in groups] == [0, 1]
    made[0].break_off()
    with pytest.raises(GroupBroken):
        groups[0].barrier()
    for group in groups:
        group.dispose()
    wait_for(lambda: not threads_named("pliant-"), "the threads to end")


def test_a_wiring_that_is_broken_off_in_its_barrier_leaves_no_thread(
    communicators: list[ScriptedCommunicator], threads: ThreadPoolExecutor
) -> None:
    made = wirings()
    running = run_all(threads, made)
    wait_for(lambda: all(each.calls for each in communicators), "the barrier to start")
    for each in made:
        each.break_off()
    assert end_of(running) == ["the wiring of generation 3 was broken off"] * 2
    assert [each.calls for each in communicators] == [["start", "abort", "shutdown"]] * 2


def test_a_wiring_that_is_broken_off_while_nccl_connects_leaves_no_thread_once_it_gave_up(
    communicators: list[ScriptedCommunicator], threads: ThreadPoolExecutor
) -> None:
    for communicator in communicators:
        communicator.may_start.clear()
    made = wirings()
    running = run_all(threads, made)
    wait_for(lambda: all(each.calls for each in communicators), "the barrier to start")
    for each in made:
        each.break_off()
    for future in running:
        with pytest.raises(GroupBroken, match="broken off"):
            future.result(PATIENCE_S)
    for communicator in communicators:
        communicator.may_start.set()
    end_of(running)
    assert [each.calls for each in communicators] == [["start", "abort", "shutdown"]] * 2


def test_nccl_does_not_start_before_every_rank_is_ready(
    communicators: list[ScriptedCommunicator], threads: ThreadPoolExecutor
) -> None:
    made = wirings(1)
    running = run_all(threads, made)
    wait_for(lambda: threads_named("pliant-nccl"), "the wiring to start")
    made[0].break_off()
    assert end_of(running) == ["the wiring of generation 3 was broken off"]
    assert communicators[0].calls == []


def test_a_rank_that_does_not_answer_ends_the_wiring_after_its_limit(
    communicators: list[ScriptedCommunicator], threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_wiring, "WIRING_S", 0.2)
    running = run_all(threads, wirings(1))
    assert end_of(running) == ["generation 3 could not be wired: no answer within 0.2 s"]
    assert communicators[0].calls == []


def test_an_error_of_nccl_during_the_wiring_is_reported(
    communicators: list[ScriptedCommunicator], threads: ThreadPoolExecutor
) -> None:
    for each in communicators:
        each.error = "no route to host"
    reason = "generation 3 could not be wired: an operation of generation 3 failed: no route to host"
    assert end_of(run_all(threads, wirings())) == [reason] * 2
