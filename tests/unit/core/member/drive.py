"""Members' machines wired together by a data plane that does nothing by itself.

A `Crew` is a few machines, the groups they meet in, and what a coordinator would tell them. A test says which
signal reaches whom, or lets `answer` carry out a member's oldest order; there is no clock and no chance. Every
signal on its way is held to what must always be so: a machine once given out stays as it was, an exit is the
last thing said, a step is applied to its parent and to nothing else, one lineage is one state, and what one
member takes for committed was applied by all who hold the state (rule 1).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GENESIS, LedgerLine, Lineage, can_follow, expected_slot_digest
from pliant.core.data.sample_order import Order
from pliant.core.member import Machine, Phase, react
from pliant.core.member import signals as s
from pliant.core.member.common import unreported_lines
from pliant.core.member.control_words import Purpose, Word, Words
from pliant.core.messages import Report
from pliant.core.model.checkpoint import Checkpoint, Piece
from pliant.core.model.job import JobState, Terms
from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.core.model.world import World, WorldKind
from unit.core import build

GRID = Grid(samples=40, batch=12, slots=6, epochs=3)  # 12 steps; 4, 8 and 12 are short: slots 0 and 1 alone
ORDER = Order(seed=7, samples=GRID.samples)
TERMS = Terms(GRID, seed=7)
LAST = GRID.total_steps

EMPTY: frozenset[Any] = frozenset()


# ------------------------------------------------------------------------------------------------- values


def lines(head: Lineage, generation: int, count: int) -> tuple[LedgerLine, ...]:
    """The lines of those steps, as members that hold the state at `head` write them; known from `lines` before it."""
    state = KNOWN.get(head, State(head))

    def before(line: LedgerLine | None) -> int:
        nonlocal state
        if line is not None:
            state = state.applied(line).after_user_code()
            KNOWN[line.lineage] = state
        return state.hash

    made = build.lines(head, generation, count, GRID, ORDER, before)
    if made:
        before(made[-1])
    return made


def recovery(number: int, *members: MemberId, base: Lineage = GENESIS) -> World:
    return build.world(number, *members, kind=WorldKind.RECOVERY, base=base)


def rollback(number: int, *members: MemberId, base: Lineage = GENESIS) -> World:
    return build.world(number, *members, kind=WorldKind.ROLLBACK, base=base)


def computed(step: int, *slots: int, grid: Grid = GRID, batch: int = 0) -> s.Computed:
    """The user's code is done with these slots, having read what the order says, and wants that batch."""
    samples = sum(len(grid.slot(step, slot)) for slot in slots)
    digest = sum(expected_slot_digest(grid, ORDER, step, slot) for slot in slots) & (2**64 - 1)
    return s.Computed(frozenset(slots), samples, digest, batch=batch)


def piece(part: int) -> Piece:
    return Piece(f"part-{part}", 1, "0" * 64)


def wrote(begun: s.Snapshot, state: int) -> s.WriteDone:
    """Return what a member says once its part is on the disk."""
    return s.WriteDone(Checkpoint(begun.lineage, begun.name, state, (piece(begun.part),)), begun.part, begun.count)


IDLE = s.Computed(frozenset(), 0, 0)


def these(*items: int) -> frozenset[int]:
    """Slots, or ranks."""
    return frozenset(items)


@dataclass(frozen=True)
class State:
    """A training state: what was applied to it, and how often the user's post-step code ran."""

    lineage: Lineage = GENESIS
    weights: int = 0
    posts: int = 0

    @property
    def hash(self) -> int:
        return crc32(f"{self.weights} {self.posts}".encode())

    def applied(self, line: LedgerLine) -> "State":
        assert line.parent == self.lineage, "a step is applied to its parent and to nothing else"
        return State(line.lineage, crc32(f"{self.weights} {line.lineage.digest}".encode()), self.posts)

    def after_user_code(self) -> "State":
        return replace(self, posts=self.posts + 1)


KNOWN: dict[Lineage, State] = {}


@dataclass
class Seat:
    """One member: its machine, its toy model, the orders it has not answered yet."""

    machine: Machine
    state: State = field(default_factory=State)
    aside: State = field(default_factory=State)
    begun: dict[str, tuple[s.Snapshot, State]] = field(default_factory=dict)  # by checkpoint, what it writes of which
    orders: list[s.Action] = field(default_factory=list)
    said: list[s.Action] = field(default_factory=list)
    alive: bool = True


_ONE_AT_A_TIME = (s.Compute, s.Collect, s.Apply, s.Restore, s.CatchUp, s.Fetch, s.Install)


class Crew:
    """A few members of one job."""

    def __init__(self, *names: MemberId, terms: Terms = TERMS) -> None:
        self.terms = terms
        self.seats = {name: Seat(Machine(name, terms)) for name in names}
        self.view = View(
            revision=0,
            state=JobState.RUNNING,
            why="",
            known=True,
            draining=False,
            grace_s=0.0,
            worlds=(),
            current=0,
            sealed=0,
            unenterable_generations=EMPTY,
            gone_in_open_worlds=EMPTY,
            holders=EMPTY,
            durable=GENESIS,
            checkpoint=None,
        )
        self.entered: dict[int, dict[MemberId, list[Word]]] = {}
        self.shares: dict[tuple[int, int], s.Shares] = {}  # by generation and turn
        self.calling: dict[int, set[MemberId]] = {}
        self.broken: dict[int, MemberId] = {}
        self.post: list[tuple[MemberId, s.Admission | s.Released]] = []
        self.files: dict[str, State] = {}
        self.history: list[LedgerLine] = []
        self.states: dict[Lineage, int] = {}
        self.wanted: dict[Any, int] = {}  # by step, or by member and step: the batch that user code set by then
        self.unlucky: set[MemberId] = set()  # whose operations fail in a broken group though they were complete

    def __getitem__(self, name: MemberId) -> Machine:
        return self.seats[name].machine

    def add(self, name: MemberId) -> None:
        self.seats[name] = Seat(Machine(name, self.terms))

    def state(self, name: MemberId) -> State:
        return self.seats[name].state

    def said(self, name: MemberId) -> tuple[s.Action, ...]:
        """Return what that member said since it was asked last."""
        said = tuple(self.seats[name].said)
        self.seats[name].said.clear()
        return said

    def hush(self) -> None:
        """Forget what was said so far."""
        for seat in self.seats.values():
            seat.said.clear()

    # -------------------------------------------------------------------------------------- one signal

    def feed(self, name: MemberId, signal: s.Signal) -> tuple[s.Action, ...]:
        seat = self.seats[name]
        before = seat.machine
        image = dict(before.__dict__)
        machine, actions = react(before, signal)
        assert before.__dict__ == image, "a machine once given out stays as it was"
        assert before.phase is not Phase.GONE or (machine is before and actions == ())
        assert not any(isinstance(action, s.Exit) for action in actions[:-1]), "an exit is the last thing said"
        assert machine.generation >= before.generation, "generations only grow"
        if machine.committed_lines and machine.committed_lines[:-1] == before.committed_lines:
            self._committed(machine.generation, machine.committed_lines[-1])
        seat.machine = machine
        seat.said += actions
        for action in actions:
            self._perform(name, seat, action)
        return actions

    def _committed(self, generation: int, line: LedgerLine) -> None:
        """Rule 1: every member of that world that holds the state has applied what one of them takes for committed."""
        for seat in self.seats.values():
            if seat.alive and seat.machine.holds_state and seat.machine.generation == generation:
                assert not line.lineage.newer_than(seat.state.lineage), "rule 1"

    def _perform(self, name: MemberId, seat: Seat, action: s.Action) -> None:
        if isinstance(action, s.Wire | s.Save):
            seat.orders.append(action)
        elif isinstance(action, _ONE_AT_A_TIME):
            seat.orders = [order for order in seat.orders if type(order) is not type(action)] + [action]
        match action:
            case s.Wire(world):
                self.calling.setdefault(world.number, set()).add(name)
            case s.Collect(world, word, shares):
                if action.whole_state_hash:
                    word = replace(word, state=seat.state.hash)
                self.entered.setdefault(world.number, {}).setdefault(name, []).append(word)
                self._shared(name, seat, action, shares)
            case s.Apply(line):
                seat.state = seat.state.applied(line)
            case s.Break(number):
                self.broken.setdefault(number, name)
                seat.orders = [order for order in seat.orders if _wires(order) != number]
            case s.SendToPeer(target, signal):
                self.post.append((target, signal))
            case s.Snapshot():
                assert action.lineage == seat.state.lineage, "what is saved is what is there"
                seat.begun[action.name] = (action, seat.state)
            case s.Send(Report() as report):
                self._reported(report)
            case s.Exit():
                self.crash(name)
            case _:
                pass

    def _shared(self, name: MemberId, seat: Seat, action: s.Collect, shares: s.Shares) -> None:
        """Rule 23: all compute the same shares, each slot once, and a holder brings its own."""
        turn = len(self.entered[action.world.number][name])
        assert self.shares.setdefault((action.world.number, turn), shares) == shares
        if action.word.purpose is not Purpose.STEP:
            assert shares == ()
        elif action.word.holds:
            assert action.word.ending or shares[seat.machine.rank] == tuple(sorted(seat.machine.kept_gradients.slots))
            assert sorted(slot for each in shares for slot in each) == list(
                seat.machine.terms.grid.filled(action.word.step)
            )

    def _reported(self, report: Report) -> None:
        """Return what the coordinator would take: the steps that follow, of a generation that is not sealed."""
        if report.generation <= self.view.sealed:
            return
        durable = self.view.durable
        for line in report.lines:
            if line.lineage.step <= durable.step:
                continue
            assert can_follow(line, durable)
            self.history.append(line)
            durable = line.lineage
        current = max(self.view.current, report.generation)
        holders = self.view.holders if report.holders is None else report.holders
        self.view = replace(self.view, durable=durable, current=current, holders=holders)

    # --------------------------------------------------------------------------------- the coordinator's word

    def tell(
        self,
        *names: MemberId,
        known: bool = True,
        draining: bool = False,
        grace_s: float = 0.0,
        **facts: Any,
    ) -> tuple[s.Action, ...]:
        """Tell these members, or all, how things stand. Facts stay for the next time; gives what the last one said."""
        self.view = replace(self.view, revision=self.view.revision + 1, **facts)
        shown = replace(self.view, known=known, draining=draining, grace_s=grace_s)
        actions: tuple[s.Action, ...] = ()
        for name in names or tuple(self.seats):
            if self.seats[name].alive:
                actions = self.feed(name, s.ViewReceived(shown))
        return actions

    def propose(self, world: World, *names: MemberId) -> None:
        """A planned world, persisted and told."""
        self.tell(*names, worlds=(*self.view.worlds, world))

    def recover(self, number: int, *members: MemberId) -> World:
        """A recovery world of these members, told to every member that is there."""
        world = recovery(number, *members, base=self.view.durable)
        self.seal(world)
        return world

    def seal(self, world: World, *names: MemberId) -> None:
        """A recovery or rollback world, which seals all below (rule 11)."""
        holders = EMPTY if world.kind is WorldKind.ROLLBACK else self.view.holders.intersection(world.members)
        self.history = [line for line in self.history if line.lineage.step <= world.base.step]
        self.tell(
            *names,
            worlds=(world,),
            sealed=world.number - 1,
            unenterable_generations=EMPTY,
            gone_in_open_worlds=EMPTY,
            durable=world.base,
            holders=holders,
        )

    # ---------------------------------------------------------------------------------------- the data plane

    def wire(self, number: int, *names: MemberId) -> None:
        """The barrier of that generation returns on these members, or on all who called."""
        for name in names or sorted(self.calling[number]):
            self._settle_order(name, s.Wire)
            self.feed(name, s.Wired(number))

    def words(self, name: MemberId) -> Words:
        """Return what every member said in the collective this member is in."""
        world = self[name].world
        assert world is not None
        entered = self.entered[world.number]
        turn = len(entered[name]) - 1
        return tuple(entered[member][turn] for member in world.members)

    def word(self, name: MemberId) -> Word:
        """Return what this member said last."""
        return self.entered[self[name].generation][name][-1]

    def returns(self, *names: MemberId) -> None:
        """The collective these members are in, or every member is in, returns to them."""
        for name in names or self._waiting():
            self._settle_order(name, s.Collect)
            self.feed(name, s.Returned(self[name].generation, self.words(name)))

    def fails(self, *names: MemberId, peer: MemberId | None = None) -> None:
        """The collective these members are in, or every member is in, returns an error."""
        for name in names or self._waiting():
            self._settle_order(name, s.Collect)
            self.feed(name, s.Failed(self[name].generation, peer))

    def compute(self, *names: MemberId) -> None:
        """The user's code of these members, or of all, is done with its slots."""
        for name in names or self._in(Phase.COMPUTING):
            self._answer_one(name, s.Compute)

    def boundary(self, *names: MemberId) -> None:
        """The user's post-step code of these members, or of all, is done."""
        for name in names or self._in(Phase.APPLIED):
            self._answer_one(name, s.Apply)

    def step(self) -> None:
        """One whole step, every member at the same pace."""
        self.compute()
        self.returns()
        self.boundary()

    def receive(self, *names: MemberId) -> None:
        """These members receive a state aside, whole, from the first donor they were given."""
        for name in names:
            self._answer_one(name, s.Fetch)

    def install(self, *names: MemberId) -> None:
        for name in names:
            self._answer_one(name, s.Install)

    def write(self, *names: MemberId) -> None:
        """The parts of a checkpoint that are wanted of these members, or of all, are on the disk."""
        for name in names or tuple(self.seats):
            for _ in [order for order in self.seats[name].orders if isinstance(order, s.Save)]:
                self._answer_one(name, s.Save)

    def deliver(self) -> None:
        """Return what members told one another arrives."""
        while self.post:
            target, signal = self.post.pop(0)
            if self.seats[target].alive:
                self.feed(target, signal)

    def crash(self, name: MemberId) -> None:
        """The process ends: its sockets close."""
        self.seats[name].alive = False
        for number, callers in self.calling.items():
            if name in callers:
                self.broken.setdefault(number, name)

    # ------------------------------------------------------------------------------------------- by itself

    def answer(self, name: MemberId) -> bool:
        """Carry out the oldest order of that member that can be carried out now. False: there is none."""
        seat = self.seats[name]
        if not seat.alive:
            return False
        for order in seat.orders:
            signal = self._outcome(name, seat, order)
            if signal is not None:
                seat.orders.remove(order)
                self.feed(name, signal)
                return True
        return False

    def run(self, done: Callable[[], bool], order: tuple[MemberId, ...] = (), limit: int = 4000) -> int:
        """Let every member act in turn until it is done, or no member can. Return the number of answered orders."""
        answered = 0
        while True:
            moved = False
            for name in order or tuple(self.seats):
                if done() or answered == limit:
                    return answered
                self.deliver()
                if self.answer(name):
                    moved = True
                    answered += 1
            if not moved:
                return answered

    def _outcome(self, name: MemberId, seat: Seat, order: s.Action) -> s.Signal | None:
        match order:
            case s.Compute(step, slots, idle):
                batch = self.wanted.get((name, seat.state.lineage.step), self.wanted.get(seat.state.lineage.step, 0))
                if idle:
                    return replace(IDLE, batch=batch)
                return computed(step, *slots, grid=seat.machine.terms.grid, batch=batch)
            case s.Apply():
                seat.state = seat.state.after_user_code()
                self._same_bits(seat.state)
                return s.Boundary(seat.state.hash)
            case s.Wire(world):
                return self._wiring(world)
            case s.Collect(world):
                return self._collective(name, world)
            case s.Restore(checkpoint):
                seat.state = self.files[checkpoint.name] if checkpoint else State()
                return s.Restored(seat.state.hash)
            case s.CatchUp(donor, lineage):
                return self._gradient(donor, lineage)
            case s.Fetch(_, donors):
                return self._stripe(seat, donors)
            case s.Install(_, replay):
                seat.state = seat.aside
                for line in replay:
                    seat.state = seat.state.applied(line).after_user_code()
                self._same_bits(seat.state)
                return s.Installed(seat.state.hash)
            case s.Save(file):
                begun, state = seat.begun[file]
                assert self.files.setdefault(file, state) == state, "all parts of a checkpoint are of one state"
                return wrote(begun, state.hash)
            case _:
                raise AssertionError(order)

    def _wiring(self, world: World) -> s.Signal | None:
        if world.number in self.broken:
            return s.WireFailed(world.number, self.broken[world.number])
        return s.Wired(world.number) if self.calling[world.number].issuperset(world.members) else None

    def _collective(self, name: MemberId, world: World) -> s.Signal | None:
        entered = self.entered[world.number]
        turn = len(entered[name])
        breaker = self.broken.get(world.number)
        complete = all(len(entered.get(member, ())) >= turn for member in world.members)
        if complete and (breaker is None or name not in self.unlucky):
            return s.Returned(world.number, self.words(name))
        if breaker is None:
            return None
        return s.Failed(world.number, breaker if breaker != name else None)

    def _gradient(self, donor: MemberId, lineage: Lineage) -> s.Signal:
        if not self.seats[donor].alive:
            return s.TransferBroken()
        return s.Gradient(next((line for line in unreported_lines(self[donor]) if line.lineage == lineage), None))

    def _stripe(self, seat: Seat, donors: tuple[MemberId, ...]) -> s.Signal | None:
        """A whole state in one stripe, captured at a boundary (rule 3)."""
        if not donors:
            return None
        donor = self.seats[donors[0]]
        if not donor.alive:
            return s.TransferBroken()
        if any(isinstance(order, s.Apply | s.Install) for order in donor.orders):
            return None
        seat.aside = donor.state
        return s.Stripe(0, 1, donor.state.lineage, donor.state.hash, unreported_lines(donor.machine))

    def _same_bits(self, state: State) -> None:
        """P4, rule 3: one lineage, one state; the post-step code ran once for every step."""
        assert self.states.setdefault(state.lineage, state.hash) == state.hash
        assert state.posts == state.lineage.step

    def _answer_one(self, name: MemberId, kind: type[s.Action]) -> None:
        seat = self.seats[name]
        order = self._settle_order(name, kind)
        signal = self._outcome(name, seat, order)
        assert signal is not None, f"{name} cannot be answered: {order}"
        self.feed(name, signal)

    def _settle_order(self, name: MemberId, kind: type[s.Action]) -> s.Action:
        seat = self.seats[name]
        order = next(order for order in seat.orders if isinstance(order, kind))
        seat.orders.remove(order)
        return order

    def _waiting(self) -> tuple[MemberId, ...]:
        return tuple(name for name, seat in self.seats.items() if seat.alive and seat.machine.in_flight)

    def _in(self, phase: Phase) -> tuple[MemberId, ...]:
        return tuple(name for name, seat in self.seats.items() if seat.alive and seat.machine.phase is phase)


# ------------------------------------------------------------------------------------------------- crews


def gathered(*names: MemberId, terms: Terms = TERMS) -> Crew:
    """A job that starts: generation 1 is wired, its lowest rank is to bring the state, the others said hello."""
    crew = Crew(*names, terms=terms)
    crew.seal(rollback(1, *names))
    crew.wire(1)
    crew.hush()
    return crew


def training(*names: MemberId, step: int = 3, terms: Terms = TERMS) -> Crew:
    """Every member holds the state in generation 1, the coordinator knows, and the slots of `step` are being computed.

    Of the steps before it the first is durable, where there are two of them and two members.
    """
    crew = gathered(*names, terms=terms)
    first, *others = names
    crew._answer_one(first, s.Restore)
    crew.returns()
    if others:
        crew.receive(*others)
        crew.install(*others)
        crew.returns()
    for done in range(1, step):
        crew.step()
        if done == 2 and others:
            crew._reported(Report(first, 0, 1, tuple(crew[first].committed_lines)))
    crew.tell()
    crew.hush()
    return crew


def _wires(order: s.Action) -> int:
    return order.world.number if isinstance(order, s.Wire) else 0


def commands(*actions: s.Action) -> tuple[object, ...]:
    """Return what was said to the coordinator."""
    return tuple(action.command for action in actions if isinstance(action, s.Send))
