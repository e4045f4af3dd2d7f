"""Who waits for news of a job, and what they are told: long polls of members and agents, and streams of events.

Nothing is queued for anybody. A waiting reader is a future; when its job changes it wakes and reads what is there
then. So a slow reader costs nothing, is told less often, and never misses where things stand.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pliant.core.data.ledger import Lineage
from pliant.core.job.next_world import desired_workers
from pliant.core.model.job import Job
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import View, view_of
from pliant.wire.api import Orders
from pliant.wire.codec import encode_reply
from pliant.wire.views import PeerKeys, WorldPositions, member_update, peer_keys, view_delta, world_positions

REMEMBERED = 16  # views of a job that a change can be told relative to; who knows only an older one is told everything
PACE_S = 50e-6  # for each watcher told, before the same job's watchers are told again: telling must not be all we do
NOBODY = MemberId("")

_NO_CHANGE = b'"delta":null}'

Lookup = Callable[[str], tuple[Job, int] | None]


class CoordinatorClosing(Exception):
    """The coordinator is going down, or another one decides; ask again, here or elsewhere."""


class ClientDisconnected(Exception):
    """Whoever waited is gone: the connection was closed from the other side."""


@dataclass(frozen=True, slots=True)
class LongPoll:
    """How long somebody waits, and what is done when it is gone."""

    seconds: float
    disconnected: asyncio.Future[None]

    async def wait_for(self, woken: asyncio.Future[None]) -> bool:
        """Wait for that; False if the time was over, or nobody waits any more, before it came.

        By hand and not with `asyncio.wait`, which takes several times as long: thousands are woken at once.
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
    """One job, as its watchers have been told of it."""

    job: Job
    revision: int
    moved: int  # the revision of the newest change that concerned more than progress
    past: deque[View] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    where: WorldPositions = field(default_factory=dict)
    keys: PeerKeys = field(default_factory=dict)
    wanted: Mapping[AgentId, int] = field(default_factory=dict)
    encoded: dict[int, bytes] = field(default_factory=dict)  # the change, by the revision it builds on
    watchers: dict[tuple[str, str], asyncio.Future[None]] = field(default_factory=dict)
    readers: set[asyncio.Future[None]] = field(default_factory=set)
    tell_at: float = 0.0
    over: bool = False  # nobody will be told anything more of it here
    telling: asyncio.TimerHandle | None = None


class Notifications:
    """Call `changed` after every pump; everything else is for those who wait.

    `key` gives what the members of a job's generation show one another.
    """

    def __init__(self, lookup: Lookup, key: Callable[[str, int], str]) -> None:
        self._lookup = lookup
        self._key = key
        self._topics: dict[str, _Topic] = {}
        self._closing = False

    @property
    def waiting(self) -> int:
        return sum(len(topic.watchers) + len(topic.readers) for topic in self._topics.values())

    def notify(self, names: tuple[str, ...], moved: tuple[str, ...]) -> None:
        """Wake whoever waits for one of these jobs. Progress alone wakes streams of events, and nobody else."""
        for name in names:
            topic = self._topics.get(name)
            if topic is None:
                continue
            for reader in topic.readers:
                if not reader.done():
                    reader.set_result(None)
            if name in moved and topic.telling is None:
                loop = asyncio.get_running_loop()
                if loop.time() >= topic.tell_at:
                    self._tell(name)
                else:
                    topic.telling = loop.call_at(topic.tell_at, self._tell, name)

    def notify_all(self) -> None:
        """Call when another coordinator may have written: tell everybody how things stand."""
        for name, topic in self._topics.items():
            if topic.telling is None:
                self._tell(name)

    def release_all(self) -> None:
        """Call when another coordinator decides: whoever waits here would wait in vain, and should ask there."""
        for topic in self._topics.values():
            if topic.telling is not None:
                topic.telling.cancel()
            topic.over = True
            for future in (*topic.watchers.values(), *topic.readers):
                if not future.done():
                    future.set_result(None)
        self._topics.clear()

    def close(self) -> None:
        """Let everybody go; from now on nobody can wait."""
        self._closing = True
        self.release_all()

    # ------------------------------------------------------------------------------------------- watching

    async def watch(self, name: str, member: MemberId, after: int, wait: LongPoll) -> bytes | None:
        """What a member is to know that knows revision `after`, as soon as there is something; None: no such job."""
        topic = self._topic(name)
        if topic is None:
            return None
        # Who is not in what was told last may have joined since: it must not be told that it is not known.
        untold = topic.telling is not None and member not in topic.job.members
        news = (topic.moved > after and not untold) or await self._wait(topic, ("member", member), wait)
        answer = member_update(topic.job, topic.revision, member, topic.where, topic.keys, self._durable(name, topic))
        if not news:
            return encode_reply(replace(answer, revision=after))
        # The change is the same for everybody who knows the same: it is encoded once and put behind what is personal.
        return encode_reply(answer)[: -len(_NO_CHANGE)] + b'"delta":' + self._change(topic, after) + b"}"

    def _durable(self, name: str, topic: _Topic) -> Lineage:
        """How much is durable by now; not if something more happened that nobody was told of yet."""
        found = self._lookup(name) if topic.telling is None else None
        return found[0].durable if found is not None else topic.job.durable

    async def orders(self, name: str, agent: AgentId, after: int, wait: LongPoll) -> bytes | None:
        """The same for an agent: how many workers it should run, and who of them drains."""
        topic = self._topic(name)
        if topic is None:
            return None
        untold = topic.telling is not None and all(known.id != agent for known in topic.job.agents)
        if topic.moved <= after or untold:
            await self._wait(topic, ("agent", agent), wait)
        job = topic.job
        mine = [member for member in job.members.values() if member.agent == agent]
        known = next((each for each in job.agents if each.id == agent), None)
        return encode_reply(
            Orders(
                revision=topic.revision,
                state=job.state,
                why=job.why,
                workers=topic.wanted.get(agent, 0),
                members=frozenset(member.id for member in mine),
                draining=frozenset(member.id for member in mine if member.draining),
                live=job.is_live,
                launch=None if job.is_live else job.launch,
                ready=known.ports if known is not None else (),
                leaving=known is not None and known.draining,
                grace_s=known.grace_s if known is not None else 0.0,
                install_id=known.install_id if known is not None else "",
                run_id=known.run_id if known is not None else "",
            )
        )

    async def wait_for_events(self, name: str, after: int, wait: LongPoll) -> None:
        """Return when the job may have events beyond `after`, when the wait is over, or when nobody waits any more."""
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

    @property
    def closing(self) -> bool:
        return self._closing

    # --------------------------------------------------------------------------------------------- inside

    def _topic(self, name: str) -> _Topic | None:
        if self._closing:
            raise CoordinatorClosing("the coordinator is going down; ask again")
        topic = self._topics.get(name)
        if topic is None:
            found = self._lookup(name)
            if found is None:
                return None
            topic = self._topics[name] = _Topic(*found, moved=found[1])
            self._look(topic)
        return topic

    async def _wait(self, topic: _Topic, who: tuple[str, str], wait: LongPoll) -> bool:
        """Wait to be told; False: nothing was. A second watch of the same member lets the first one go."""
        former = topic.watchers.get(who)
        if former is not None and not former.done():
            former.set_result(None)
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        topic.watchers[who] = woken
        moved = topic.moved
        try:
            await wait.wait_for(woken)
        finally:
            if topic.watchers.get(who) is woken:
                del topic.watchers[who]
        if topic.over:
            raise CoordinatorClosing("this coordinator does not decide any more; ask again, or another one")
        if wait.disconnected.done():
            raise ClientDisconnected
        return topic.moved > moved

    def _tell(self, name: str) -> None:
        """Bring a topic up to date and wake those of its watchers for whom that is news."""
        topic = self._topics[name]
        topic.telling = None
        found = self._lookup(name)
        if found is None or self._closing:
            return
        before, past = topic.job, topic.past[-1]
        topic.job, topic.revision = found
        self._look(topic)
        concerns_all = replace(topic.past[-1], revision=past.revision, durable=past.durable) != past
        topic.moved = topic.revision
        woken = 0
        for (kind, who), future in topic.watchers.items():
            if future.done():
                continue
            if (
                concerns_all
                or kind == "agent"
                or _standing(before, MemberId(who)) != _standing(topic.job, MemberId(who))
            ):
                future.set_result(None)
                woken += 1
        topic.tell_at = asyncio.get_running_loop().time() + woken * PACE_S

    def _look(self, topic: _Topic) -> None:
        topic.past.append(view_of(topic.job, topic.revision, NOBODY))
        topic.where = world_positions(topic.job)
        topic.keys = peer_keys(topic.job, self._key)
        topic.wanted = desired_workers(topic.job)
        topic.encoded.clear()

    def _change(self, topic: _Topic, after: int) -> bytes:
        newest = topic.past[-1]
        base = next((past for past in topic.past if past.revision == after), None)
        key = base.revision if base is not None else 0
        encoded = topic.encoded.get(key)
        if encoded is None:
            encoded = topic.encoded[key] = encode_reply(view_delta(base, newest))
        return encoded


def _standing(job: Job, member: MemberId) -> tuple[bool, bool, float]:
    record = job.members.get(member)
    return (False, False, 0.0) if record is None else (True, record.draining, record.grace_s)
