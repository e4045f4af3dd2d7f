"""Watches, orders and event streams over a real service and store, on a real event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest

from pliant.coordinator.async_service import AsyncService
from pliant.coordinator.generation_keys import GenerationKeys
from pliant.coordinator.notifications import REMEMBERED, ClientDisconnected, CoordinatorClosing, LongPoll
from pliant.coordinator.service.inbox import Accepted, Pumped, Sender
from pliant.coordinator.service.pump import Service
from pliant.coordinator.service.steps import Steps
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.job.checkpoints import checkpoint_name
from pliant.core.job.decide import decide
from pliant.core.model.job import JobSpec, Target
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import View, view_of
from pliant.errors import StoreUnavailable
from pliant.stores.base import Write
from pliant.stores.memory import MemoryStore
from pliant.wire.api import EVENTS, Orders
from pliant.wire.codec import Body
from pliant.wire.views import PeerKey, ViewUpdate, apply_update
from unit.core.build import A, B, C, X, checkpoint, drain, join, lines

TOLD, ORDERS = Body(ViewUpdate), Body(Orders)
SOON_S, LONG_S = 0.05, 20.0


class Office:
    """A desk that decides, with a member to watch it."""

    def __init__(self) -> None:
        self.store = MemoryStore("office")
        self.desk = AsyncService(
            Service(self.store, "c1", lambda: 1000.0, lease_ttl_s=60.0),
            GenerationKeys(self.store),
            lambda pumped, seconds: None,
            lambda command, answer: None,
        )
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def tell(self, *commands: m.Command) -> int:
        revision = 0
        for command in commands:
            reply = await self.desk.execute("demo", command)
            assert isinstance(reply.answer, Accepted), reply.answer
            revision = reply.revision
        return revision

    def watching(self, member: MemberId, after: int, seconds: float = LONG_S) -> "asyncio.Task[ViewUpdate]":
        return asyncio.create_task(self.watch(member, after, seconds))

    async def watch(self, member: MemberId, after: int = 0, seconds: float = LONG_S) -> ViewUpdate:
        body = await self.desk.notifications.watch("demo", member, after, LongPoll(seconds, self.gone))
        assert body is not None
        return TOLD.decode(body)

    async def orders(self, agent: AgentId, after: int, seconds: float = LONG_S) -> Orders:
        body = await self.desk.notifications.orders("demo", agent, after, LongPoll(seconds, self.gone))
        assert body is not None
        return ORDERS.decode(body)

    async def events(self, job: str, after: int) -> None:
        await self.desk.notifications.wait_for_events(job, after, LongPoll(LONG_S, self.gone))

    async def settle(self) -> None:
        """Let everything that is ready run."""
        for _ in range(20):
            await asyncio.sleep(0)

    def seen(self, member: MemberId) -> View:
        found = self.desk.service.job("demo")
        assert found is not None
        return view_of(found[0], found[1], member)


def in_office(scene: Callable[[Office], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def play() -> None:
            office = Office()
            await office.desk.start(LONG_S)
            await scene(office)
            await office.desk.close(LONG_S)

        asyncio.run(asyncio.wait_for(play(), 60))

    run.__name__ = scene.__name__
    return run


CREATE = m.Create("demo", JobSpec(1, 4, Target(4)))
ENTERED = m.Report(A, 0, 1, (), frozenset({A}))


@in_office
async def test_who_knows_nothing_is_told_everything_at_once(office: Office) -> None:
    await office.tell(CREATE, join(A))
    assert apply_update(None, await office.watch(A)) == office.seen(A)


@in_office
async def test_a_member_is_told_the_keys_of_the_generations_that_have_it(office: Office) -> None:
    key = partial(GenerationKeys(office.store).key, "demo", 1000.0)
    await office.tell(CREATE, join(A))
    assert (await office.watch(A)).keys == (PeerKey(1, key(1)),)
    await office.tell(ENTERED, join(B))
    assert (await office.watch(A)).keys == (PeerKey(1, key(1)), PeerKey(2, key(2)))
    assert (await office.watch(B)).keys == (PeerKey(2, key(2)),)
    await office.tell(m.Leave(B, 0, "bye"))
    assert [world.members for world in office.seen(A).worlds] == [(A,), (A, B), (A,)]
    assert (await office.watch(B)).keys == ()  # generation 2 is open still; who is gone is told nothing of it
    assert (await office.watch(C)).keys == ()


@in_office
async def test_who_is_told_nothing_new_is_told_its_keys_all_the_same(office: Office) -> None:
    newest = await office.tell(CREATE, join(A))
    told = await office.watch(A, newest, SOON_S)
    assert (told.delta, [one.generation for one in told.keys]) == (None, [1])


@in_office
async def test_a_watch_is_answered_when_the_world_changes(office: Office) -> None:
    await office.tell(CREATE, join(A), join(B))
    known = apply_update(None, await office.watch(A))
    waiting = office.watching(A, known.revision)
    await office.settle()
    assert not waiting.done()
    await office.tell(ENTERED)
    news = await asyncio.wait_for(waiting, LONG_S / 2)
    assert news.delta is not None
    assert news.delta.since == known.revision
    assert apply_update(known, news) == office.seen(A)


@in_office
async def test_the_answer_says_which_rank_is_mine(office: Office) -> None:
    await office.tell(CREATE, join(A), join(B), ENTERED)
    told = await office.watch(B)
    world = office.seen(B).worlds[-1]
    assert (told.generation, told.rank, told.size) == (world.number, world.members.index(B), len(world.members))


@in_office
async def test_progress_wakes_nobody_but_streams_of_events(office: Office) -> None:
    await office.tell(CREATE, join(A), ENTERED)
    known = apply_update(None, await office.watch(A))
    waiting = office.watching(A, known.revision)
    reading = asyncio.create_task(office.events("demo", known.revision))
    await office.settle()
    revision = await office.tell(m.Report(A, 0, 1, lines(known.durable, 1, 1)))
    await reading
    assert revision > known.revision
    assert not waiting.done()
    waiting.cancel()


@in_office
async def test_only_the_one_that_drains_is_woken(office: Office) -> None:
    await office.tell(m.Create("demo", JobSpec(1, 1, Target(1))), join(A), ENTERED, join(B), join(C))
    first, second = apply_update(None, await office.watch(B)), apply_update(None, await office.watch(C))
    waiting, other = office.watching(B, first.revision), office.watching(C, second.revision)
    await office.settle()
    await office.tell(drain(B))
    assert (await waiting).draining
    assert not other.done()
    other.cancel()


@in_office
async def test_another_part_of_a_checkpoint_wakes_its_writer_alone(office: Office) -> None:
    await office.tell(m.Create("demo", JobSpec(3, 3, Target(3))), m.AgentJoin(X, 3), join(A), join(B), join(C), ENTERED)
    saved = replace(checkpoint(GENESIS), name=checkpoint_name(GENESIS, 1))
    first = await office.tell(m.Publish(A, 1, saved, 0, 3))
    waiting = [office.watching(each, first) for each in (A, B)]
    orders = asyncio.create_task(office.orders(X, first))
    await office.settle()
    await office.tell(m.Publish(B, 1, saved, 1, 3))
    await waiting[1]
    assert office.seen(B).written_parts == ((saved.name, 0), (saved.name, 1))
    assert not waiting[0].done()
    await office.tell(m.Publish(C, 1, saved, 2, 3))
    await waiting[0]
    published = office.seen(A).checkpoint
    assert published is not None
    assert published.name == saved.name
    await office.settle()
    assert not orders.done()
    orders.cancel()


@in_office
async def test_when_the_wait_is_over_nothing_changed_and_the_revision_stays(office: Office) -> None:
    await office.tell(CREATE, join(A))
    known = await office.watch(A)
    news = await office.watch(A, known.revision, SOON_S)
    assert (news.delta, news.revision, news.known) == (None, known.revision, True)


@in_office
async def test_who_knows_only_what_was_long_ago_is_told_everything(office: Office) -> None:
    await office.tell(CREATE, join(A))
    known = apply_update(None, await office.watch(A))
    for size in range(2 * REMEMBERED):
        await office.tell(m.Resize(Target(1 + size % 4)), m.AgentJoin(X, size))
        await office.watch(A, 0)
    news = await office.watch(A, known.revision)
    assert news.delta is not None
    assert news.delta.since == 0
    assert apply_update(known, news) == office.seen(A)


@in_office
async def test_a_second_watch_of_the_same_member_lets_the_first_go(office: Office) -> None:
    revision = await office.tell(CREATE, join(A))
    first = office.watching(A, revision)
    await office.settle()
    second = office.watching(A, revision)
    assert (await first).delta is None
    assert not second.done()
    second.cancel()


@in_office
async def test_who_hangs_up_is_no_longer_told(office: Office) -> None:
    revision = await office.tell(CREATE, join(A))
    waiting = office.watching(A, revision)
    await office.settle()
    office.gone.set_result(None)
    with pytest.raises(ClientDisconnected):
        await waiting
    assert office.desk.notifications.waiting == 0


@in_office
async def test_at_the_end_everybody_is_let_go(office: Office) -> None:
    revision = await office.tell(CREATE, join(A))
    waiting = office.watching(A, revision)
    reading = asyncio.create_task(office.events("demo", revision))
    await office.settle()
    await office.desk.close(LONG_S)
    with pytest.raises(CoordinatorClosing):
        await waiting
    await reading
    with pytest.raises(CoordinatorClosing):
        await office.watch(A)


@in_office
async def test_many_changes_in_a_moment_are_told_as_one(office: Office) -> None:
    revision = await office.tell(CREATE, join(A), join(B))
    known = apply_update(None, await office.watch(A))
    assert known.revision == revision
    waiting = office.watching(A, known.revision)
    await office.settle()
    await asyncio.gather(*(office.tell(each) for each in (m.Exited(B, -9), m.Resize(Target(2)), m.Cancel("enough"))))
    news = await waiting
    assert apply_update(known, news) == office.seen(A)


@in_office
async def test_an_agent_is_told_how_many_workers_to_run_and_who_of_them_drains(office: Office) -> None:
    await office.tell(CREATE, m.AgentJoin(X, 3), join(A), join(B))
    first = await office.orders(X, 0)
    assert (first.workers, set(first.members), set(first.draining)) == (3, {A, B}, set())
    waiting = asyncio.create_task(office.orders(X, first.revision))
    await office.settle()
    assert not waiting.done()
    await office.tell(drain(A))
    second = await waiting
    assert second.draining == {A}


@in_office
async def test_nobody_can_watch_a_job_that_is_not_there(office: Office) -> None:
    assert await office.desk.notifications.watch("stranger", A, 0, LongPoll(LONG_S, office.gone)) is None
    assert await office.desk.notifications.orders("stranger", X, 0, LongPoll(LONG_S, office.gone)) is None


@in_office
async def test_what_is_asked_after_the_end_is_not_decided(office: Office) -> None:
    await office.tell(CREATE)
    await office.desk.close(LONG_S)
    reply = await office.desk.renew("demo", Sender("member", A), 0)
    assert "shutting down" in str(reply.answer)


@in_office
async def test_who_has_just_joined_is_not_told_that_it_is_not_known(office: Office) -> None:
    """Notifications of many watches are paced; a watch that begins in between gets the next one, not an old one."""
    await office.tell(CREATE, join(A), join(B))
    known = apply_update(None, await office.watch(A))
    watching = [office.watching(A, known.revision), office.watching(B, known.revision)]
    await office.settle()
    topic = office.desk.notifications._topics["demo"]
    topic.next_update_at = asyncio.get_running_loop().time() + 0.2  # as if thousands had been told just now
    await office.tell(m.AgentJoin(X, 2), join(C))
    assert topic.next_update is not None
    told, orders = await asyncio.gather(office.watch(C), office.orders(X, 0))
    assert told.known
    assert orders.workers == 2
    for each in watching:
        each.cancel()


@in_office
async def test_a_job_that_others_wrote_to_is_told_again(office: Office) -> None:
    """A write whose answer was lost stands in the store; reading it again is news for every watch."""
    revision = await office.tell(CREATE, join(A), join(B), ENTERED)
    known = apply_update(None, await office.watch(A))
    waiting = office.watching(A, known.revision)
    await office.settle()
    found = office.desk.service.job("demo")
    assert found is not None
    events = decide(found[0], m.Exited(B, -9), 1.0)
    assert isinstance(events, tuple)
    office.store.write([Write("demo", revision, tuple(EVENTS.encode(event) for event in events))])
    await office.tell(join(A))  # says nothing new, and loses no race: but what it knows is read again when it is told
    reply = await office.desk.renew("demo", Sender("member", A), revision + len(events))
    assert isinstance(reply.answer, Accepted)
    news = await asyncio.wait_for(waiting, LONG_S / 2)
    assert apply_update(known, news) == office.seen(A)


@in_office
async def test_a_decision_that_fails_leaves_nobody_waiting_and_the_clock_running(office: Office) -> None:
    await office.tell(CREATE)
    pump, office.desk.service.pump_steps = office.desk.service.pump_steps, _fail  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="a bug in Pliant"):
        await office.desk.execute("demo", join(A))
    office.desk.service.pump_steps = pump  # type: ignore[method-assign]
    await office.tell(join(A))


def _fail(now: float) -> Steps[Pumped]:
    raise RuntimeError("on purpose")
