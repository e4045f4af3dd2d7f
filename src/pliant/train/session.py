"""Run one member's state machine and carry out its decisions.

The machine (`pliant.core.member`) decides. Several threads feed it, one at a time, under one lock:

    training thread     reports what it did (`feed_and_take`), and gets its next order as the return value
    coordinator link    receives views, and the end of the membership (`view_received`, `fenced`)
    peer connections    receive messages of other members (`message_received`)
    background threads  wire a group, download a state, wait for a grace period

The thread that feeds a signal also carries out the resulting actions: it sends to the coordinator and to peers, and
starts background threads. Only orders, which touch the model, are left to the training thread. An order that follows
from the training thread's own signal is returned to it directly. An order that follows from another thread's signal
crosses threads in a queue, which the training thread reads in the iterator (`wait_for_order`).

This module is independent of the framework: groups come from `wire`, checkpoints are removed by `collect_garbage`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeAlias, assert_never

import msgspec

from pliant.core.data.ledger import LedgerLine
from pliant.core.job.launches import FENCED_CODE
from pliant.core.member import Machine, Phase, react
from pliant.core.member import signals as s
from pliant.core.member.common import unreported_lines
from pliant.core.member.leave import grace_margin_s, reason_to_stop
from pliant.core.messages import Command, Join, Leave
from pliant.core.model.job import JobState, Terms
from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.core.model.world import World, WorldKind
from pliant.errors import BadInput
from pliant.train.coordinator_link import LinkListener
from pliant.train.group.contract import CollectiveGroup, GroupWiring, StartWiring
from pliant.train.live.errors import Left
from pliant.train.peer.server import PeerLost, PeerServer
from pliant.train.process import PauseLog
from pliant.train.state.transfer import ReceivedState, StateDownload, fetch_gradient
from pliant.wire.views import PeerKey

log = logging.getLogger(__name__)

LET_IN, RELEASED = "let-in", "released"
PREPARING_MAX_S = 5.0  # the other members give up a wiring after 15 s
WIRING_END_S = 5.0  # time limit; an interrupted wiring ends in milliseconds

_AT_REST = frozenset({Phase.HOLDING, Phase.STOPPED, Phase.OUTSIDE})

Order = s.Compute | s.Collect | s.Apply | s.Restore | s.Install | s.Snapshot | s.Save | s.Exit
"""An action that the training thread carries out, because it touches the model."""


class CoordinatorChannel(Protocol):
    """The connection to the coordinator, or its replacement in a job without one."""

    def join(self, command: Join) -> None: ...
    def start(self, listener: LinkListener) -> None: ...
    def send(self, command: Command) -> None: ...
    def close(self) -> None: ...


class StartDownload(Protocol):
    """Makes a download of the state, which `start` begins."""

    def __call__(
        self,
        peers: PeerServer,
        generation: int,
        donors: tuple[MemberId, ...],
        feed: Callable[[StateDownload, s.Signal], None],
    ) -> StateDownload: ...


PrepareMemory: TypeAlias = Callable[[int, tuple[MemberId, ...], threading.Event], None]
"""Prepares memory for the state that donors will send in a generation, until an event is set."""


class _PreparedWiring:
    """The wiring of a member that will receive the state. The others wait for its wiring, and not for this."""

    def __init__(self, wiring: GroupWiring, prepare: Callable[[threading.Event], None]) -> None:
        self._wiring = wiring
        self._prepare = prepare
        self._stop = threading.Event()

    def run(self) -> CollectiveGroup:
        limit = threading.Timer(PREPARING_MAX_S, self._stop.set)
        limit.daemon = True
        limit.start()
        try:
            self._prepare(self._stop)
        finally:
            limit.cancel()
        return self._wiring.run()

    def break_off(self) -> None:
        self._stop.set()
        self._wiring.break_off()


class Session:
    """A member's session, from joining to leaving. The last order is an `Exit`."""

    def __init__(
        self,
        member: MemberId,
        terms: Terms,
        coordinator: CoordinatorChannel,
        peers: PeerServer | None,
        wire: StartWiring,
        forget: Callable[[int], None],
        collect_garbage: Callable[[s.CollectGarbage | s.Discard], None] | None = None,
        download: StartDownload = StateDownload,
        on_view: Callable[[View, tuple[PeerKey, ...]], None] | None = None,
        prepare_memory: PrepareMemory | None = None,
    ) -> None:
        self.member = member
        self.machine = Machine(member, terms, can_save=collect_garbage is not None)
        self._collect_garbage = collect_garbage  # None if the member has no checkpoint storage
        self.groups: dict[int, CollectiveGroup] = {}
        self.received: ReceivedState | None = None  # a state or gradient that is not installed yet
        self._coordinator = coordinator
        self._peers = peers
        self._wire = wire
        self._download = download
        self._on_view = on_view  # for parameter servers
        self._prepare_memory = prepare_memory
        self._forget = forget  # drops messages and connections of generations below a number
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)  # notified after each signal of a background thread
        self._queued: deque[Order] = deque()  # orders that the training thread has yet to take
        self._signals: deque[s.Signal] = deque()
        self._reacting = False
        self._closed = False
        self._wirings: dict[int, GroupWiring] = {}
        self._wiring_threads: list[threading.Thread] = []
        self._worlds: dict[int, World] = {}
        self._keys: dict[int, str] = {}
        self._fetching: StateDownload | None = None
        self._catching_up = threading.Event()
        self._timers: list[threading.Timer] = []
        self._grace: tuple[float, float] | None = None  # its end, and its length
        self._snapshots: dict[str, float] = {}  # the newest checkpoint begun, with the time
        self._save_s = 0.0  # the duration of the last save; 0: none yet
        self._logged_why = ""
        self.pauses = PauseLog()

    def start(self, join: Join) -> None:
        """Join the job and start to receive views. Raises if the coordinator refuses this member."""
        self._coordinator.join(join)
        self._coordinator.start(self)

    def close(self) -> None:
        """Stop all background work. Call it last, after success and failure alike."""
        for timer in self._timers:
            timer.cancel()
        with self._lock:
            self._closed = True
            self._stop_receiving()
            wirings, self._wirings = self._wirings, {}
            for wiring in wirings.values():
                wiring.break_off()
            groups, self.groups = list(self.groups.values()), {}
        self._coordinator.close()
        for group in groups:
            group.break_off()
            group.dispose()
        for thread in self._wiring_threads:
            thread.join(WIRING_END_S)  # torch aborts a process that exits while another thread frees an operation
        if self._peers is not None:
            self._peers.close()

    def leave(self, why: str) -> None:
        """Send a leave to the coordinator when user code left the loop, so that the lease need not expire."""
        if self.machine.phase is not Phase.GONE:
            self._coordinator.send(Leave(self.member, 0, why))

    # ------------------------------------------------------------------------------------- the training thread

    def take_received(self) -> ReceivedState:
        """Return the received state or gradient, and drop the session's reference to it."""
        with self._lock:
            received, self.received = self.received, None
            self._fetching = None
            assert received is not None
            return received

    def feed_and_take(self, signal: s.Signal) -> Order | None:
        """Feed a signal and return the next order, or None if it depends on a signal of another thread."""
        with self._lock:
            orders = self._react(signal)
            if not self._queued and len(orders) == 1:
                return orders[0]
            self._queued.extend(orders)
            return self.take_queued()

    def take_queued(self) -> Order | None:
        """Return the next order if there is one already."""
        with self._lock:
            return self._queued.popleft() if self._queued else None

    def require_member(self) -> None:
        """Raise `Left` if the job has ended, if this member is fenced, or if its grace period is over."""
        with self._lock:
            exits = [order for order in self._queued if isinstance(order, s.Exit)]
            machine, view = self.machine, self.machine.view
        if exits:
            raise Left(exits[0].code, exits[0].why)
        if view is not None and (view.state.ended or not view.known):
            code = int(view.state is JobState.FAILED) if view.known else FENCED_CODE
            raise Left(code, reason_to_stop(machine, view))

    def wait_for_order(self) -> Order:
        """Wait until another thread's signal leads to an order, and return it."""
        with self._news:
            self._news.wait_for(lambda: self._queued)
            return self._queued.popleft()

    def group(self, generation: int) -> CollectiveGroup | None:
        """Return the group of a generation, or None if it is broken or not wired."""
        with self._lock:
            return self.groups.get(generation)

    def wait_for_state(self, generation: int) -> bool:
        """Wait until the state has arrived; return False if the generation ended before that.

        A joiner enters a collective only then, so that the other members wait as briefly as possible and the joiner has
        one step to apply afterwards, not many.
        """
        with self._news:
            self._news.wait_for(
                lambda: (
                    self.machine.received_state is not None
                    or generation not in self.groups
                    or bool(self.machine.stop_reason)
                )
            )
            return generation in self.groups and not self.machine.stop_reason

    # -------------------------------------------------------------------------------------------- the machine

    def feed(self, signal: s.Signal) -> None:
        """Feed a signal from any thread. Orders for the training thread are queued when this returns."""
        with self._news:
            if isinstance(signal, s.WriteDone):
                self._measure_save(signal)
            self._queued.extend(self._react(signal))
            self._news.notify_all()

    def _react(self, signal: s.Signal) -> list[Order]:
        """Let the machine react, in the calling thread, which holds the lock.

        Carries out all actions but those for the training thread, and returns these.
        """
        orders: list[Order] = []
        if self._closed:
            return orders  # a thread that outlives the session must not touch a group: the process may be exiting
        self._signals.append(signal)
        if self._reacting:
            return orders  # an action fed this signal: the loop below, further up the stack, takes it next
        self._reacting = True
        try:
            while self._signals:
                self.machine, actions = react(self.machine, self._signals.popleft())
                for action in actions:
                    self._perform(action, orders)
        finally:
            self._reacting = False
        self._drop_unused_groups()
        self._log_why_waiting()
        return orders

    def _drop_unused_groups(self) -> None:
        """Break the groups of worlds that were wired and then skipped."""
        machine = self.machine
        if len(self.groups) == 1 and machine.generation in self.groups:
            return
        used = {machine.generation, *(world.number for world in machine.wired_worlds)}
        if machine.previous_world is not None:
            used.add(machine.previous_world.number)
        for number in [number for number in self.groups if number not in used]:
            self._break(number)

    def _perform(self, action: s.Action, orders: list[Order]) -> None:
        match action:
            case s.Snapshot():
                self._snapshots = {action.name: time.monotonic()}
                orders.append(action)
            case s.Compute() | s.Collect() | s.Apply() | s.Restore() | s.Install() | s.Save() | s.Exit():
                orders.append(action)
            case s.CollectGarbage() | s.Discard():
                assert self._collect_garbage is not None
                self._collect_garbage(action)
            case s.Send():
                self._coordinator.send(self.pauses.attach_to(action.command))
            case s.Wire():
                self._start_wiring(action.world)
            case s.Break():
                self._break(action.generation)
            case s.SendToPeer():
                self._send_to_peer(action)
            case s.Fetch():
                self._fetch(action)
            case s.CatchUp():
                self._catch_up(action)
            case s.StartGrace():
                ends_at = time.monotonic() + action.grace_s
                if self._grace is not None and self._grace[0] < ends_at:
                    return  # the earlier grace period ends first, though it is longer
                self._grace = (ends_at, action.grace_s)
                self._announce_short_grace()
                self._after(action.grace_s, s.GraceOver())
            case _:
                assert_never(action)

    @property
    def grace_s(self) -> float | None:
        """The length of the grace period, once one has begun."""
        return self._grace[1] if self._grace is not None else None

    def _announce_short_grace(self) -> None:
        """Feed `GraceShort` when a save must begin. Call again once a save was measured: it may be earlier then."""
        if self._grace is not None:
            ends_at, grace_s = self._grace
            self._after(max(ends_at - grace_margin_s(grace_s, self._save_s) - time.monotonic(), 0.0), s.GraceShort())

    def _measure_save(self, done: s.WriteDone) -> None:
        """Keep the duration of a save, as it would be for a part of the current world's size."""
        began = self._snapshots.pop(done.checkpoint.name, None)
        world = self.machine.world
        if began is not None:
            writers = len(world.members) if world is not None else 1
            self._save_s = (time.monotonic() - began) * done.count / writers
            self._announce_short_grace()

    def _after(self, delay_s: float, signal: s.Signal) -> None:
        timer = threading.Timer(delay_s, self.feed, (signal,))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _log_why_waiting(self) -> None:
        """Log why this member waits, once for each reason. Waiting for a wiring is too short to mention.

        What follows the reason after a semicolon is detail, whose change is no news.
        """
        machine, view, why = self.machine, self.machine.view, ""
        if view is not None and not machine.wiring_generation and machine.phase in _AT_REST:
            if view.state is JobState.WAITING:
                why = f"waiting: {view.why}"
            elif machine.phase is Phase.OUTSIDE and view.spare_why:
                why = f"spare: {view.spare_why}"
        if why and why.partition(";")[0] != self._logged_why.partition(";")[0]:
            log.info("%s", why)
        self._logged_why = why

    # --------------------------------------------------------------------------------------- the coordinator

    def view_received(self, view: View, keys: tuple[PeerKey, ...]) -> None:
        """Feed the coordinator's view to the machine, after the keys of its generations went to the peer server."""
        if self._on_view is not None:
            self._on_view(view, keys)
        with self._lock:
            self._keys.update({each.generation: each.key for each in keys})
            for world in view.worlds:
                self._worlds[world.number] = world
                key = self._keys.get(world.number)
                if self._peers is not None and key is not None and self.member in world.members:
                    self._peers.add_generation(
                        world.number, key, dict(zip(world.members, world.addresses, strict=True))
                    )
            self._forget_before(view)
            self.feed(s.ViewReceived(view))

    def _forget_before(self, view: View) -> None:
        """Drop data of past generations: of sealed ones at once, so that no transfer blocks, of others once closed."""
        first = view.worlds[0].number if view.worlds else 0
        below = max(view.sealed + 1, min(first, self.machine.generation))
        self._forget(below)
        self._worlds = {number: world for number, world in self._worlds.items() if number >= below}
        self._keys = {number: key for number, key in self._keys.items() if number >= below}

    def fenced(self, revision: int, why: str) -> None:
        """Handle that the coordinator does not know this member, unless its view is older than ours."""
        with self._news:
            view = self.machine.view
            if self.machine.phase is Phase.GONE:
                return  # it left in an orderly way
            if view is None:
                self._queued.append(s.Exit(FENCED_CODE, why))  # lost before its first view arrived
                self._news.notify_all()
            elif revision >= view.revision:
                log.warning("%s", why)
                self.feed(s.ViewReceived(replace(view, revision=revision + 1, known=False)))

    # -------------------------------------------------------------------------------------------- the groups

    def _start_wiring(self, world: World) -> None:
        wiring = self._wire(world, self._keys.get(world.number, ""))
        view, prepare = self.machine.view, self._prepare_memory
        joins = world.kind is WorldKind.PLANNED and self.machine.phase is Phase.OUTSIDE  # else the others wait for it
        donors = tuple(member for member in world.members if view is not None and member in view.holders)
        if prepare is not None and joins and donors:
            wiring = _PreparedWiring(wiring, partial(prepare, world.number, donors))
        self._wirings[world.number] = wiring
        thread = threading.Thread(target=self._wire_up, args=(world.number, wiring), name="pliant-wiring", daemon=True)
        self._wiring_threads = [each for each in self._wiring_threads if each.is_alive()] + [thread]
        thread.start()

    def _wire_up(self, generation: int, wiring: GroupWiring) -> None:
        try:
            group = wiring.run()
        except Exception as error:  # why: the coordinator needs a report of every wiring that fails
            with self._lock:
                if self._wirings.pop(generation, None) is wiring:
                    log.info("generation %d could not be wired: %s", generation, error)
                    self.feed(s.WireFailed(generation, getattr(error, "peer", None)))
            return
        with self._lock:
            if self._wirings.pop(generation, None) is wiring:
                self.groups[generation] = group
                self.feed(s.Wired(generation))
                return
        group.break_off()  # the wiring was interrupted just as it succeeded
        group.dispose()

    def _break(self, generation: int) -> None:
        wiring = self._wirings.pop(generation, None)
        if wiring is not None:
            wiring.break_off()
        group = self.groups.pop(generation, None)
        if group is not None:
            group.break_off()
            group.dispose()
        if generation == self.machine.generation:
            self._stop_receiving()

    # --------------------------------------------------------------------------------------------- the peers

    def message_received(self, generation: int, kind: str, head: bytes) -> None:
        """Decode a peer's message and feed it to the machine."""
        if kind == LET_IN:
            let_in = msgspec.msgpack.decode(head, type=s.Admission)
            if let_in.generation == generation:
                self.feed(let_in)
        elif kind == RELEASED:
            self.feed(msgspec.msgpack.decode(head, type=s.Released))

    def ledger_lines(self) -> tuple[LedgerLine, ...]:
        """Return the unreported ledger lines, which a joiner needs to be able to report in place of this member."""
        with self._lock:
            return unreported_lines(self.machine)

    def _send_to_peer(self, action: s.SendToPeer) -> None:
        """Send a message with the key of a generation that has both members: a leaver is not in the newest world."""
        shared = [n for n, world in self._worlds.items() if {action.member, self.member} <= set(world.members)]
        if self._peers is not None and shared:
            kind = LET_IN if isinstance(action.signal, s.Admission) else RELEASED
            generation = action.signal.generation if action.signal.generation in shared else max(shared)
            try:
                self._peers.notify(generation, action.member, kind, msgspec.msgpack.encode(action.signal))
            except (BadInput, PeerLost) as error:
                log.info("no message reached %s (%s); it will learn from the coordinator's view", action.member, error)

    def _fetch(self, action: s.Fetch) -> None:
        fetching = self._fetching
        if fetching is not None and fetching.generation == action.generation and fetching.is_progressing():
            return  # the download of this state is still under way
        self._stop_receiving()
        if self._peers is None:
            return
        self._fetching = self._download(self._peers, action.generation, action.donors, self._fed_by_transfer)
        self._fetching.start()

    def _fed_by_transfer(self, fetching: StateDownload, signal: s.Signal) -> None:
        with self._lock:
            if fetching is self._fetching:
                if fetching.received is not None:
                    self.received = fetching.received
                self.feed(signal)

    def _stop_receiving(self) -> None:
        if self._fetching is not None:
            self._fetching.stop()
            self._fetching = None
        self._catching_up.set()

    def _catch_up(self, action: s.CatchUp) -> None:
        stop = self._catching_up = threading.Event()
        donors = self.machine.donors or (action.donor,)
        generation = self.machine.generation
        threading.Thread(
            target=self._ask_gradient, args=(generation, donors, action, stop), name="pliant-catch-up", daemon=True
        ).start()

    def _ask_gradient(
        self, generation: int, donors: tuple[MemberId, ...], action: s.CatchUp, stop: threading.Event
    ) -> None:
        if self._peers is None:
            return
        try:
            found = fetch_gradient(self._peers, generation, donors, action.lineage, stop)
        except (PeerLost, msgspec.MsgspecError) as error:
            log.info("could not fetch the gradient of a missed step: %s", error)
            signal: s.Signal = s.TransferBroken()
        else:
            signal = s.Gradient(found[0] if found else None)
        with self._lock:
            if not stop.is_set():
                if isinstance(signal, s.Gradient) and found is not None:
                    self.received = found[1]
                self.feed(signal)
