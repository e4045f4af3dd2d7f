"""The simulated data plane: process groups and their collectives.

Like gloo, a group does not know steps or generations: the n-th operation of each member meets the n-th of the others.
When a member dies or breaks the group, the operations of the others fail unless they had completed: a collective may
complete on some members and fail on others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from pliant.core.member.control_words import Word, Words
from pliant.core.member.signals import Collect, Failed, Returned, Shares, Wired, WireFailed
from pliant.core.model.job import Dispute
from pliant.core.model.names import MemberId
from pliant.core.model.world import World
from pliant_sim.live.member_checks import MemberChecks
from pliant_sim.live.toy_model import FALSE, WRONG, Content

WIRING_PATIENCE_S = 2.0
RESET_AFTER_S = 5.0  # a link that stays cut this long resets its connections


@dataclass(slots=True)
class Collective:
    """One collective, and the contribution of each rank."""

    words: dict[int, Word] = field(default_factory=dict)
    parts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    shares: dict[int, Shares] = field(default_factory=dict)
    complete: bool = False


@dataclass(slots=True)
class ProcessGroup:
    """A generation's process group."""

    world: World
    calling: set[MemberId] = field(default_factory=set)
    wired: set[MemberId] = field(default_factory=set)
    barrier: bool = False
    watched: bool = False  # a timer checks whether the wiring makes progress
    broken: MemberId | None = None
    operations: list[Collective] = field(default_factory=list)
    entered: dict[MemberId, int] = field(default_factory=dict)  # operations entered so far
    waiting: dict[MemberId, int] = field(default_factory=dict)  # operation not yet returned


class FabricNetwork(Protocol):
    """The job of a fabric: its members, and the links between them."""

    @property
    def chance(self) -> Random: ...

    @property
    def checks(self) -> MemberChecks: ...

    @property
    def verifies(self) -> bool: ...

    @property
    def any_cut(self) -> bool: ...

    def is_cut(self, a: MemberId, b: MemberId) -> bool: ...

    def exists(self, member: MemberId) -> bool: ...

    def errs(self, member: MemberId) -> bool: ...

    def after(self, delay_s: float, act: Callable[..., None], *args: object) -> None: ...

    def feed(self, member: MemberId, signal: Wired | WireFailed | Returned | Failed) -> None: ...

    def reduced(self, member: MemberId, words: Words, content: Content) -> None: ...


class Fabric:
    """All groups of one job."""

    def __init__(self, sim: FabricNetwork) -> None:
        self._sim = sim
        self.groups: dict[int, ProcessGroup] = {}

    def wire(self, member: MemberId, world: World) -> None:
        group = self.groups.setdefault(world.number, ProcessGroup(world))
        if group.broken is not None:
            self._later(member, WireFailed(world.number, group.broken))
            return
        group.calling.add(member)
        self._try_barrier(group)
        if not group.barrier and not group.watched:
            group.watched = True
            self._sim.after(WIRING_PATIENCE_S, self._lose_patience, group)

    def _try_barrier(self, group: ProcessGroup) -> None:
        if group.barrier or group.broken is not None or len(group.calling) < len(group.world.members):
            return
        if self._cut_pair(group) is not None:
            return
        group.barrier = True
        for member in group.world.members:
            self._sim.after(self._sim.chance.uniform(0.002, 0.03), self._barrier_returns, group, member)

    def _barrier_returns(self, group: ProcessGroup, member: MemberId) -> None:
        if group.broken is None and member in group.calling:
            group.calling.discard(member)
            group.wired.add(member)
            self._sim.feed(member, Wired(group.world.number))

    def _lose_patience(self, group: ProcessGroup) -> None:
        """Fail the wiring of members that cannot reach a peer; a peer that is only late is waited for."""
        if group.barrier or group.broken is not None:
            return
        for member in sorted(group.calling):
            for other in group.world.members:
                if self._sim.is_cut(member, other) or not self._sim.exists(other):
                    self._fail_wiring(group, other, only=member)
                    break
        self._sim.after(WIRING_PATIENCE_S, self._lose_patience, group)

    def _fail_wiring(self, group: ProcessGroup, peer: MemberId, only: MemberId | None = None) -> None:
        for member in sorted(group.calling):
            if only is None or member == only:
                group.calling.discard(member)
                self._later(member, WireFailed(group.world.number, peer))

    def enter(self, member: MemberId, action: Collect, part: tuple[int, ...]) -> None:
        number = action.world.number
        group = self.groups[number]
        if group.broken is not None:
            self._later(member, Failed(number, group.broken if group.broken != member else None))
            return
        index = group.entered.get(member, 0)
        group.entered[member] = index + 1
        group.waiting[member] = index
        if index == len(group.operations):
            group.operations.append(Collective())
        operation = group.operations[index]
        rank = group.world.members.index(member)
        operation.words[rank] = action.word
        operation.shares[rank] = action.shares
        operation.parts[rank] = part
        self._try_complete(group, index)

    def _try_complete(self, group: ProcessGroup, index: int) -> None:
        operation = group.operations[index]
        if operation.complete or len(operation.words) < len(group.world.members):
            return
        pair = self._cut_pair(group)
        if pair is not None:
            self._sim.after(RESET_AFTER_S, self._reset, group, index, pair)
            return
        operation.complete = True
        size = len(group.world.members)
        words = tuple(operation.words[rank] for rank in range(size))
        content: Content = tuple(operation.parts[rank] for rank in range(size))
        disputes = self._disputes(group.world, words, content)
        self._sim.checks.reduces(group.world, words, operation.shares, content)
        for member in group.world.members:
            delay = self._sim.chance.uniform(0.001, 0.04)
            returned = Returned(group.world.number, words, disputes)
            self._sim.after(delay, self._returns, group, member, index, returned, content)

    def _disputes(self, world: World, words: tuple[Word, ...], content: Content) -> tuple[Dispute, ...]:
        """Compare each gradient with that of the next holder, where states are verified."""
        holding = [rank for rank, word in enumerate(words) if word.holds]
        if not self._sim.verifies or len(holding) < 2:
            return ()
        found = []
        for turn, rank in enumerate(holding):
            other = world.members[holding[(turn + 1) % len(holding)]]
            false = [gradient % WRONG for gradient in content[rank] if gradient & FALSE]
            seen = [gradient % WRONG for gradient in content[rank]] if self._sim.errs(other) else false
            if seen:
                found.append(Dispute(seen[0], world.members[rank], other))
        return tuple(found)

    def _returns(self, group: ProcessGroup, member: MemberId, index: int, returned: Returned, content: Content) -> None:
        if group.waiting.get(member) == index:
            del group.waiting[member]
            self._sim.reduced(member, returned.words, content)
            self._sim.feed(member, returned)

    def _reset(self, group: ProcessGroup, index: int, pair: tuple[MemberId, MemberId]) -> None:
        operation = group.operations[index]
        if operation.complete or group.broken is not None:
            return
        if self._cut_pair(group) is None:
            self._try_complete(group, index)
            return
        for member, other in (pair, pair[::-1]):
            if group.waiting.pop(member, None) is not None:
                self._later(member, Failed(group.world.number, other))
        self.break_group(pair[0], group.world.number)

    def healed(self) -> None:
        """Continue operations that waited for a link."""
        for group in self.groups.values():
            if group.broken is None:
                self._try_barrier(group)
                if group.operations:
                    self._try_complete(group, len(group.operations) - 1)

    def break_group(self, by: MemberId, number: int) -> None:
        """`by` closed its sockets. Operations that had not returned fail, or are just in time."""
        group = self.groups.get(number)
        if group is None or by not in group.world.members:
            return
        if group.broken is None:
            group.broken = by
            self._fail_wiring(group, by)
        group.calling.discard(by)
        for member, index in list(group.waiting.items()):
            in_time = group.operations[index].complete and self._sim.chance.random() < 0.5
            if not in_time or member == by:
                del group.waiting[member]
                self._later(member, Failed(number, by if by != member else None))

    def is_waiting(self, number: int, but: MemberId) -> MemberId | None:
        """Return another member whose operation in that group has not returned."""
        group = self.groups.get(number)
        if group is None or group.broken is not None:
            return None
        return next((member for member in group.waiting if member != but), None)

    def dies(self, member: MemberId) -> None:
        for number in list(self.groups):
            group = self.groups[number]
            if member in group.calling or member in group.wired or member in group.waiting:
                group.waiting.pop(member, None)
                self.break_group(member, number)

    def forget(self, sealed: int) -> None:
        """Drop groups far below the seal."""
        for number in [n for n in self.groups if n < sealed - 16]:
            del self.groups[number]

    def _cut_pair(self, group: ProcessGroup) -> tuple[MemberId, MemberId] | None:
        if not self._sim.any_cut:
            return None
        members = group.world.members
        for i, a in enumerate(members):
            for b in members[i + 1 :]:
                if self._sim.is_cut(a, b) or self._sim.is_cut(b, a):
                    return a, b
        return None

    def _later(self, member: MemberId, signal: Failed | WireFailed) -> None:
        delay = self._sim.chance.uniform(0.005, 0.1)
        deliver: Callable[..., None] = self._sim.feed
        self._sim.after(delay, deliver, member, signal)
