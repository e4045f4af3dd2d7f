"""Long polls of members and agents, and event streams: wake them when their job changes.

Nothing is queued for a watcher. Each one is a future. When its job changes, it wakes and reads the current state. So a
slow watcher costs nothing, reads less often, and never misses the newest state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pliant.coordinator.service.inbox import Pumped
from pliant.core.data.ledger import Lineage
from pliant.core.job.assignment import desired_workers, permitted_starts, workers_on
from pliant.core.messages import Event, PartWritten
from pliant.core.model.checkpoint import NEVER_WHOLE
from pliant.core.model.copies import change
from pliant.core.model.job import Job
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import View, shared_view
from pliant.wire.api import Orders
from pliant.wire.codec import encode_reply
from pliant.wire.views import PeerKeys, WorldPositions, member_update, peer_keys, view_delta, world_positions

REMEMBERED = 16  # views of a job that a change can be relative to; a watcher with an older one gets the whole view
PACE_S = 50e-6  # for each woken watcher, before watchers of the same job are woken again, to leave time for requests

_NO_CHANGE = b'"delta":null}'

Lookup = Callable[[str], tuple[Job, int] | None]


class CoordinatorClosing(Exception):
    """The coordinator is shutting down, or another one leads. Retry here or there."""


class ClientDisconnected(Exception):
    """The client that waited has closed its connection."""


@dataclass(frozen=True, slots=True)
class LongPoll:
    """A client that waits: for how long, and a future that is done once it has disconnected."""

    seconds: float
    disconnected: asyncio.Future[None]

    async def wait_for(self, woken: asyncio.Future[None]) -> bool:
        """Wait until `woken` is done. False if the time is over or the client disconnects first.

        `asyncio.wait` would take several times as long, and thousands of clients are woken at once.
        """
        over = False

        def wake(_: object = None) -> None:
            nonlocal over
            if not woken.done():
                over = True
                woken.set_result(None)

        timer = asyncio.get_running_loop().call_later(self.seconds, wake)
        self.disconnected.add_done_callback(wake)
        try:
            await woken
        finally:
            timer.cancel()
            self.disconnected.remove_done_callback(wake)
        return not over


@dataclass(slots=True)
class _Topic:
    """One job, as its watchers last saw it."""

    job: Job
    revision: int
    moved: int  # revision of the newest change that is more than progress
    past: deque[View] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    positions: WorldPositions = field(default_factory=dict)
    keys: PeerKeys = field(default_factory=dict)
    workers: Mapping[AgentId, int] = field(default_factory=dict)
    encoded: dict[int, bytes] = field(default_factory=dict)  # by the revision that the change is relative to
    watchers: dict[tuple[str, str], asyncio.Future[None]] = field(default_factory=dict)
    savers: set[MemberId] = field(default_factory=set)  # members that wrote parts of checkpoints since the last update
    readers: set[asyncio.Future[None]] = field(default_factory=set)
    next_update_at: float = 0.0
    released: bool = False  # another coordinator leads, or this one is closing
    next_update: asyncio.TimerHandle | None = None


class Notifications:
    """The watchers of all jobs. Call `notify` after every pump.

    `key` returns the key that the members of a job's generation show one another.
    """

    def __init__(self, lookup: Lookup, key: Callable[[str, float, int], str]) -> None:
        self._lookup = lookup
        self._key = key
        self._topics: dict[str, _Topic] = {}
        self._closing = False

    @property
    def waiting(self) -> int:
        return sum(len(topic.watchers) + len(topic.readers) for topic in self._topics.values())

    def notify(self, pumped: Pumped) -> None:
        """Wake the watchers of jobs with new events. Progress alone (a job not in `moved`) wakes only event streams."""
        for name, events in pumped.decided:
            if name in self._topics:
                self._topics[name].savers |= savers_of(events)
        for name in pumped.changed:
            topic = self._topics.get(name)
            if topic is None:
                continue
            for reader in topic.readers:
                if not reader.done():
                    reader.set_result(None)
            if name in pumped.moved and topic.next_update is None:
                loop = asyncio.get_running_loop()
                if loop.time() >= topic.next_update_at:
                    self._update(name)
                else:
                    topic.next_update = loop.call_at(topic.next_update_at, self._update, name)

    def notify_all(self) -> None:
        """Update all watchers, because another coordinator may have written."""
        for name, topic in self._topics.items():
            if topic.next_update is None:
                self._update(name)

    def release_all(self) -> None:
        """Release all watchers, because another coordinator leads and they must ask that one."""
        for topic in self._topics.values():
            if topic.next_update is not None:
                topic.next_update.cancel()
            topic.released = True
            for future in (*topic.watchers.values(), *topic.readers):
                if not future.done():
                    future.set_result(None)
        self._topics.clear()

    def close(self) -> None:
        """Release all watchers and refuse new ones."""
        self._closing = True
        self.release_all()

    # ------------------------------------------------------------------------------------------- watching

    async def watch(self, name: str, member: MemberId, after: int, wait: LongPoll) -> bytes | None:
        """Return the changes after revision `after` for a member, once there are some; None if there is no such job."""
        topic = self._topic(name)
        if topic is None:
            return None
        # A member that is missing in the last update may have joined since. It must not be answered as unknown.
        is_pending = topic.next_update is not None and member not in topic.job.members
        news = (topic.moved > after and not is_pending) or await self._wait(topic, ("member", member), wait)
        self._drop_ended(name, topic)
        answer = member_update(
            topic.job, topic.revision, member, topic.positions, topic.keys, self._durable(name, topic)
        )
        if not news:
            return encode_reply(replace(answer, revision=after))
        # The change is the same for all watchers with the same revision. It is encoded once and appended to the rest.
        return encode_reply(answer)[: -len(_NO_CHANGE)] + b'"delta":' + self._change(topic, after) + b"}"

    def _durable(self, name: str, topic: _Topic) -> Lineage:
        """Return the newest durable lineage, unless an update is pending that watchers must see first."""
        found = self._lookup(name) if topic.next_update is None else None
        return found[0].durable if found is not None else topic.job.durable

    async def orders(self, name: str, agent: AgentId, after: int, wait: LongPoll) -> bytes | None:
        """Return the orders of an agent, once there are some newer than `after`; None if there is no such job."""
        topic = self._topic(name)
        if topic is None:
            return None
        is_pending = topic.next_update is not None and all(known.id != agent for known in topic.job.agents)
        if topic.moved <= after or is_pending:
            await self._wait(topic, ("agent", agent), wait)
        self._drop_ended(name, topic)
        job = topic.job
        here, draining = workers_on(job, agent)
        known = next((each for each in job.agents if each.id == agent), None)
        return encode_reply(
            Orders(
                revision=topic.revision,
                state=job.state,
                why=job.why,
                workers=topic.workers.get(agent, 0),
                members=here,
                draining=draining,
                live=job.is_live,
                launch=None if job.is_live else job.launch,
                ready=known.ports if known is not None else (),
                leaving=known is not None and known.draining,
                grace_s=known.grace_s if known is not None else 0.0,
                install_id=known.install_id if known is not None else "",
                run_id=known.run_id if known is not None else "",
                permitted=permitted_starts(job, known),
            )
        )

    async def wait_for_events(self, name: str, after: int, wait: LongPoll) -> None:
        """Return when the job may have events after `after`, when the time is over, or when the client disconnects."""
        topic = self._topic(name)
        found = self._lookup(name)
        if topic is None or found is None or found[1] > after or self._closing:
            return
        reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        topic.readers.add(reader)
        try:
            await wait.wait_for(reader)
        finally:
            topic.readers.discard(reader)
            self._drop_ended(name, topic)

    @property
    def closing(self) -> bool:
        return self._closing

    # --------------------------------------------------------------------------------------------- inside

    def _topic(self, name: str) -> _Topic | None:
        if self._closing:
            raise CoordinatorClosing("the coordinator is shutting down; ask again")
        topic = self._topics.get(name)
        if topic is None:
            found = self._lookup(name)
            if found is None:
                return None
            topic = self._topics[name] = _Topic(*found, moved=found[1])
            self._capture(topic)
        return topic

    def _drop_ended(self, name: str, topic: _Topic) -> None:
        """Forget an ended job without watchers: it changes no more, and is looked up again if it is watched again."""
        idle = not topic.watchers and not topic.readers and topic.next_update is None
        if idle and topic.job.state.ended and self._topics.get(name) is topic:
            del self._topics[name]

    async def _wait(self, topic: _Topic, watcher: tuple[str, str], wait: LongPoll) -> bool:
        """Wait for an update; False if there was none. A second watch of the same sender ends the first one."""
        former = topic.watchers.get(watcher)
        if former is not None and not former.done():
            former.set_result(None)
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        topic.watchers[watcher] = woken
        moved = topic.moved
        try:
            await wait.wait_for(woken)
        finally:
            if topic.watchers.get(watcher) is woken:
                del topic.watchers[watcher]
        if topic.released:
            raise CoordinatorClosing("this coordinator does not lead any more; ask again, or ask another one")
        if wait.disconnected.done():
            raise ClientDisconnected
        return topic.moved > moved

    def _update(self, name: str) -> None:
        """Update a topic and wake the watchers that the change concerns."""
        topic = self._topics[name]
        topic.next_update = None
        found = self._lookup(name)
        if found is None or self._closing:
            return
        before, past = topic.job, topic.past[-1]
        topic.job, topic.revision = found
        self._capture(topic)
        concerns_all = is_news(past, topic.past[-1])
        concerns_agents = changes_orders(before, topic.job)
        savers, topic.savers = topic.savers, set()
        topic.moved = topic.revision
        woken = 0
        for (kind, ident), future in topic.watchers.items():
            if future.done():
                continue
            if kind == "agent":
                concerns = concerns_agents
            else:
                member = MemberId(ident)
                concerns = concerns_all or member in savers or standing(before, member) != standing(topic.job, member)
            if concerns:
                future.set_result(None)
                woken += 1
        topic.next_update_at = asyncio.get_running_loop().time() + woken * PACE_S

    def _capture(self, topic: _Topic) -> None:
        topic.past.append(shared_view(topic.job, topic.revision))
        topic.positions = world_positions(topic.job)
        topic.keys = peer_keys(topic.job, self._key)
        topic.workers = desired_workers(topic.job)
        topic.encoded.clear()

    def _change(self, topic: _Topic, after: int) -> bytes:
        newest = topic.past[-1]
        base = next((past for past in topic.past if past.revision == after), None)
        key = base.revision if base is not None else 0
        encoded = topic.encoded.get(key)
        if encoded is None:
            encoded = topic.encoded[key] = encode_reply(view_delta(base, newest))
        return encoded


def is_news(before: View, after: View) -> bool:
    """Return whether a change of the shared view concerns all members.

    Progress does not. Nor does another part of a checkpoint: its writer alone waits for that.
    """
    same = change(after, revision=before.revision, durable=before.durable, written_parts=before.written_parts)
    return same != before or _unfinished(before) != _unfinished(after)


def _unfinished(view: View) -> set[tuple[str, bool]]:
    """Return the names of unfinished checkpoints, each with whether it will never be finished."""
    return {(name, part == NEVER_WHOLE) for name, part in view.written_parts}


def savers_of(events: tuple[Event, ...]) -> set[MemberId]:
    """Return the members that wrote a part of a checkpoint. They publish it again until they see it."""
    return {event.member for event in events if isinstance(event, PartWritten)}


def changes_orders(before: Job, after: Job) -> bool:
    """Return whether an agent may have other orders."""
    return before is not after and _ordering(before) != _ordering(after)


def _ordering(job: Job) -> tuple[object, ...]:
    """Return what the orders of agents depend on. The reason for the job's state alone wakes no agent."""
    members = (job.members, job.gone, job.permits)
    return (job.state, job.is_live, job.spec, job.target, job.granted, job.agents, job.launch, *members)


def standing(job: Job, member: MemberId) -> tuple[bool, bool, float]:
    """Return what a member must be woken for, of that which it sees beside the shared view."""
    record = job.members.get(member)
    return (False, False, 0.0) if record is None else (True, record.draining, record.grace_s)
