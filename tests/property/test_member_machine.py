"""The member's machine under any signals: total, pure, and true to the rules whatever the order (rules 3, 7-10).

A walk is a list of numbers. Each number picks the next signal, mostly one the machine waits for, now and then any
other; peers mostly agree, now and then say something else. So every phase is reached, with every signal in it.
"""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GENESIS, LedgerLine, Lineage, expected_slot_digest, make_line
from pliant.core.data.sample_order import Order
from pliant.core.member import Machine, Phase, react
from pliant.core.member import signals as s
from pliant.core.member.control_words import CALM, LEAVING, OUT_OF_TIME, Purpose, Word, slot_checksum
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import Dispute, JobState, Terms
from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.core.model.world import World, WorldKind

GRID = Grid(samples=20, batch=6, slots=3, epochs=1)  # 4 steps; the last one is short
ORDER = Order(seed=3, samples=GRID.samples)
TERMS = Terms(GRID, seed=3, checkpoint_every=2)
ME = MemberId("b")
PEERS = (MemberId("a"), MemberId("c"), MemberId("d"))
MASK = 2**64 - 1

walks = st.lists(st.integers(0, 2**32), min_size=25, max_size=60)


def counted(step: int, slots: frozenset[int]) -> tuple[int, int, int]:
    """Samples, marks and digest of these slots."""
    samples = sum(len(GRID.slot(step, slot)) for slot in slots)
    digest = sum(expected_slot_digest(GRID, ORDER, step, slot) for slot in slots) & MASK
    return samples, sum(map(slot_checksum, slots)) & MASK, digest


def next_line(parent: Lineage, generation: int) -> LedgerLine:
    step = parent.step + 1
    samples, _, digest = counted(step, frozenset(GRID.filled(step)))
    return make_line(parent, max(generation, parent.generation), step, GRID.cursor(step), samples, digest)


@dataclass
class Walk:
    """One machine, what surrounds it, and the chance that drives them."""

    machine: Machine = field(default_factory=lambda: Machine(ME, TERMS))
    revision: int = 0
    number: int = 0
    worlds: tuple[World, ...] = ()
    formed: dict[int, World] = field(default_factory=dict)  # every world there ever was
    sealed: int = 0
    current: int = 0
    word: Word | None = None
    compute: s.Compute | None = None
    known: Lineage = GENESIS  # where the others are, as far as any member told

    # -------------------------------------------------------------------------------------- the next signal

    def pick(self, chance: Random) -> s.Signal:
        if chance.random() < 0.15:
            return chance.choice(self.anything(chance))
        awaited = self.awaited(chance)
        return awaited if awaited is not None else self.told(chance)

    def awaited(self, chance: Random) -> s.Signal | None:
        m = self.machine
        if m.wiring_generation and chance.random() < (0.3 if m.world and m.phase is not Phase.STOPPED else 0.9):
            return (
                s.Wired(m.wiring_generation)
                if chance.random() < 0.8
                else s.WireFailed(m.wiring_generation, chance.choice(PEERS))
            )
        match m.phase:
            case Phase.OUTSIDE if m.wired_worlds:
                return s.Admission(m.wired_worlds[-1].number, self.known, PEERS[:2])
            case Phase.RESTORING:
                return s.Restored(chance.randrange(9))
            case Phase.COMPUTING:
                return self.computed(chance)
            case Phase.COLLECTING:
                if m.fetching and chance.random() < 0.5:
                    return self.stripe(chance)
                if chance.random() < 0.1:
                    return s.Failed(m.generation, chance.choice([None, *PEERS]))
                return s.Returned(m.generation, self.words(chance))
            case Phase.APPLIED:
                return s.Boundary(chance.randrange(9))
            case Phase.CATCHING_UP:
                if m.fetching:
                    return self.stripe(chance)
                good = m.catch_up_to is not None and m.catch_up_to.step == m.lineage.step + 1 and chance.random() < 0.7
                found = LedgerLine(m.catch_up_to, m.lineage, 0, 0, 0, 0) if good and m.catch_up_to else None
                return s.Gradient(found)
            case Phase.INSTALLING:
                return s.Installed(chance.randrange(9))
            case Phase.LINGERING if chance.random() < 0.5:
                return s.Released(m.switch_to or 1)
            case _:
                return None

    def anything(self, chance: Random) -> list[s.Signal]:
        m = self.machine
        number = chance.choice([m.generation, m.generation + 1, max(m.generation - 1, 0), m.wiring_generation])
        peer = chance.choice([None, *PEERS])
        lineage = chance.choice([GENESIS, m.lineage, self.known])
        return [
            self.told(chance),
            self.told(chance),
            s.Tick(),
            s.Wired(number),
            s.WireFailed(number, peer),
            self.computed(chance),
            s.Computed(frozenset({chance.randrange(3)}), 2, 5),
            s.Returned(number, self.words(chance)),
            s.Failed(number, peer),
            s.Boundary(chance.randrange(9)),
            s.Restored(chance.randrange(9)),
            s.Gradient(chance.choice([None, m.applied_line])),
            self.stripe(chance),
            s.TransferBroken(),
            s.TransferBroken(wrong_state=True),
            s.Returned(number, self.words(chance), (Dispute(1, ME, PEERS[0]),)),
            replace(self.computed(chance), state=chance.randrange(9)),
            s.Installed(chance.randrange(9)),
            s.Admission(number, lineage, PEERS[:2]),
            s.Released(number),
            s.GraceShort(),
            s.WriteDone(Checkpoint(lineage, "x", 1)),
        ]

    def endings(self) -> list[s.Signal]:
        """Signals that end a member, or may."""
        return [s.DrainNotice(10.0, "spot"), s.GraceOver(), s.UserCodeRaised(1, (1, 2), ((3,), ()), "x")]

    def computed(self, chance: Random) -> s.Computed:
        order = self.compute
        if order is None or order.idle:
            return s.Computed(frozenset(), 0, 0)
        slots = frozenset(order.slots)
        if chance.random() < 0.2:
            slots = frozenset(order.slots[:1])
        samples, _, digest = counted(order.step, slots)
        return s.Computed(slots, samples, digest)

    def stripe(self, chance: Random) -> s.Stripe:
        lineage = self.machine.catch_up_to or (self.known if chance.random() < 0.8 else GENESIS)
        count = chance.choice([1, 1, 2])
        return s.Stripe(chance.randrange(count), count, lineage, 0, ())

    # ------------------------------------------------------------------------------------ what the others say

    def words(self, chance: Random) -> tuple[Word, ...]:
        """Every member's words, in which the first peer that holds has whatever this member has not."""
        m, mine = self.machine, self.word
        if m.world is None or mine is None:
            return ()
        lineage = m.lineage if m.holds_state else self.known
        step = lineage.step + 1 if mine.purpose is Purpose.STEP else 0
        if step > GRID.total_steps:
            lineage, step = GENESIS, 1
        rest = frozenset(GRID.filled(step)) - m.kept_gradients.slots if step else frozenset()
        words: list[Word] = []
        for member in m.world.members:
            if member == ME:
                words.append(mine)
                continue
            holds = chance.random() < 0.8 or (not mine.holds and bool(rest))
            slots, rest = (rest, frozenset()) if holds else (frozenset(), rest)
            samples, marks, digest = counted(step, slots) if step else (0, 0, 0)
            words.append(
                Word(
                    purpose=mine.purpose,
                    generation=mine.generation,
                    step=step if holds else 0,
                    lineage=lineage if holds else GENESIS,
                    holds=holds,
                    state=mine.state if mine.holds else 0,
                    wired=self.wired_by(member, chance.choice([mine.wired, mine.wired, 0, mine.generation + 1])),
                    wired_needed=chance.choice([mine.wired_needed, 1]),
                    drain_urgency=chance.choice([CALM, CALM, LEAVING, OUT_OF_TIME, OUT_OF_TIME]),
                    slots=len(slots),
                    samples=samples,
                    slot_checksum=marks,
                    digest=digest,
                    kept=frozenset({chance.randrange(3)}) if chance.random() < 0.3 else frozenset(),
                )
            )
        rate = 0.4 if mine.purpose is Purpose.HELLO else 0.05
        return tuple(
            self.odd(chance, word, mine.holds) if word is not mine and chance.random() < rate else word
            for word in words
        )

    def wired_by(self, member: MemberId, number: int) -> int:
        """No member can wire a world it is not in, and who wired a recovery world enters no collective before it."""
        world = self.formed.get(number)
        return number if world is not None and world.kind is WorldKind.PLANNED and member in world.members else 0

    def odd(self, chance: Random, word: Word, holds: bool) -> Word:
        """The same word with one thing wrong with it, which a member that holds, or a second peer, can tell.

        In a comparison nothing is wrong with being a step ahead.
        """
        ahead = Lineage(word.generation, min(word.lineage.step + 1, GRID.total_steps), 9)
        wrong: list[dict[str, Any]] = [
            {"state": word.state + 1},
            {"failed": True},
            {"samples": word.samples + 1},
            {"slot_checksum": word.slot_checksum + 1},
            {"generation": word.generation + 1},
            {"purpose": Purpose.CLOSE},
            {"holds": False},
        ]
        if holds:
            wrong += [{"lineage": ahead}, {"holds": True, "step": 1}]
        return replace(word, **({"lineage": ahead} if word.purpose is Purpose.HELLO else chance.choice(wrong)))

    def told(self, chance: Random) -> s.ViewReceived:
        m = self.machine
        ahead = any(world.number > m.generation and ME in world.members for world in self.worlds)
        if chance.random() < (0.2 if ahead else 0.7):
            self.form(chance)
        if self.worlds and chance.random() < 0.5:
            self.current = max(self.current, m.generation if m.entered else 0)
        self.revision += chance.choice([1, 1, 1, 0, -1])
        ended = chance.random() < 0.01
        some = frozenset(name for name in PEERS if chance.random() < 0.05)
        view = View(
            revision=self.revision,
            state=chance.choice([JobState.FINISHED, JobState.FAILED]) if ended else JobState.RUNNING,
            why="because",
            known=chance.random() < 0.995,
            draining=m.world is not None and chance.random() < 0.05,
            grace_s=5.0,
            worlds=self.worlds,
            current=self.current,
            sealed=self.sealed,
            unenterable_generations=frozenset({self.number}) if chance.random() < 0.05 else frozenset(),
            gone_in_open_worlds=some,
            holders=frozenset(PEERS[:2]),
            durable=chance.choice([GENESIS, *(one.lineage for one in m.committed_lines)]),
            checkpoint=chance.choice([None, Checkpoint(m.lineage, "x", 1)]),
        )
        return s.ViewReceived(view)

    def form(self, chance: Random) -> None:
        """The next world: planned, or one that seals all others."""
        self.number += 1
        kind = chance.choice([WorldKind.PLANNED, WorldKind.PLANNED, WorldKind.RECOVERY, WorldKind.ROLLBACK])
        if self.number == 1:
            kind = WorldKind.ROLLBACK
        others = [name for name in PEERS if chance.random() < 0.5]
        members = [*others, ME] if chance.random() < 0.9 else [*others, PEERS[0]]
        members = list(dict.fromkeys(members))
        chance.shuffle(members)
        base = self.known if kind is WorldKind.ROLLBACK and chance.random() < 0.5 else GENESIS
        hold = kind is WorldKind.PLANNED and chance.random() < 0.2
        formed = self.formed[self.number] = World(self.number, kind, tuple(members), (1,) * len(members), base, hold)
        if kind is WorldKind.PLANNED:
            self.worlds = (*self.worlds, formed)
        else:
            self.worlds = (formed,)
            self.sealed = self.number - 1

    # ---------------------------------------------------------------------------------------- one reaction

    def react(self, signal: s.Signal) -> tuple[Machine, Machine, tuple[s.Action, ...]]:
        before = self.machine
        image = deepcopy(before.__dict__)
        after, actions = react(before, signal)
        assert before.__dict__ == image, "the machine passed in was changed"
        self.machine = after
        for action in actions:
            match action:
                case s.Collect(_, word):
                    self.word = word
                case s.Compute():
                    self.compute = action
                case _:
                    pass
        self.known = after.lineage if after.holds_state else self.known
        if isinstance(signal, s.Returned) and after.followed_steps:
            self.known = after.followed_steps[-1].line.lineage
        return before, after, actions


def all_is_well(signal: s.Signal, before: Machine, after: Machine, actions: tuple[s.Action, ...]) -> None:
    """Return what holds of every reaction to any signal."""
    kinds = [type(action) for action in actions]
    # An exit is the last thing said, once, and is what being gone means.
    assert s.Exit not in kinds[:-1]
    assert (s.Exit in kinds) == (after.phase is Phase.GONE and before.phase is not Phase.GONE)
    # Rule 10: nothing is applied by who stopped; nothing is applied but what a collective or a winner brought.
    if s.Apply in kinds:
        assert before.phase in (Phase.COLLECTING, Phase.CATCHING_UP)
        assert isinstance(signal, s.Returned | s.Gradient)
    # Rules 4, 10: generations only grow, and a planned one is not for who stopped, holds or lingers.
    if after.world is not before.world:
        assert after.generation > before.generation
        planned = after.world is not None and after.world.kind is WorldKind.PLANNED
        assert not (planned and before.phase in (Phase.STOPPED, Phase.HOLDING, Phase.LINGERING))
        assert planned or (s.Collect in kinds) or (s.Restore in kinds)
    # Rule 3: the world changes at a boundary, or from rest; never between an apply and what comes after it.
    if before.phase is Phase.APPLIED and after.world is not before.world:
        assert isinstance(signal, s.Boundary)
    # Rule 9: one operation at a time, and it is under way just as long as the member waits for it.
    assert kinds.count(s.Collect) <= 1
    if s.Collect in kinds and before.in_flight:
        assert isinstance(signal, s.Returned | s.Failed)
    if after.phase is not Phase.GONE:
        assert after.in_flight == (after.phase is Phase.COLLECTING)
    # Rule 7: one wiring at a time; groups are kept in order, and only those still to be entered.
    assert kinds.count(s.Wire) <= 1
    numbers = [world.number for world in after.wired_worlds]
    assert numbers == sorted(set(numbers))
    assert all(number > after.generation for number in numbers)
    if s.Wire in kinds and before.wiring_generation and not isinstance(signal, s.Wired | s.WireFailed):
        assert s.Break(before.wiring_generation) in actions
    # Who is stopped waits: no computing, no transfer goes on.
    if after.phase is Phase.STOPPED:
        assert s.Compute not in kinds
        assert not after.fetching
    # Rule 1: committed lines are a chain, and what is applied on top of them is their child.
    chain = (*after.committed_lines, after.applied_line) if after.applied_line is not None else after.committed_lines
    assert all(child.parent == parent.lineage for parent, child in pairwise(chain))


@settings(max_examples=120)
@given(walks, st.sampled_from([0, 1, 2]))
def test_any_signal_in_any_phase_is_reacted_to_by_the_rules(numbers: list[int], verify: int) -> None:
    walk = Walk(Machine(ME, replace(TERMS, verify=verify)))
    for number in numbers:
        signal = walk.pick(Random(number))
        all_is_well(signal, *walk.react(signal))
        if number % 4 == 0:
            # Whatever might come next: the same machine reacts to all of it, and is the same afterwards.
            image = deepcopy(walk.machine.__dict__)
            for other in (*walk.anything(Random(number)), *walk.endings()):
                machine, actions = react(walk.machine, other)
                all_is_well(other, walk.machine, machine, actions)
            assert walk.machine.__dict__ == image


@settings(max_examples=40)
@given(walks, st.integers(0, 2**32))
def test_who_is_gone_stays_silent(numbers: list[int], later: int) -> None:
    walk = Walk()
    for number in numbers:
        walk.react(walk.pick(Random(number)))
    walk.react(s.GraceOver())
    gone = walk.machine
    assert gone.phase is Phase.GONE
    for signal in (*walk.anything(Random(later)), *walk.endings()):
        machine, actions = react(gone, signal)
        assert machine is gone
        assert actions == ()


@settings(max_examples=40)
@given(walks)
def test_the_same_signals_lead_to_the_same_machine(numbers: list[int]) -> None:
    """Purity: two members in the same place do the same, whatever else happens around them."""
    one, two = Walk(), Walk()
    for number in numbers:
        signal = one.pick(Random(number))
        assert two.pick(Random(number)) == signal
        assert one.react(signal) == two.react(signal)
