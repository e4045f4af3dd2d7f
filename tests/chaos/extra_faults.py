"""The other kinds of faults: bad networks, slowness, every member lost, damaged checkpoints, `pliant run` killed.

The injector of `pliant chaos` slows workers and cuts connections, and undoes it however the harness ends.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from chaos import faults as narrow
from chaos.chronicle import Scene
from chaos.faults import EFFECT_S, Fault
from chaos.job import JOB, Job, opened
from pliant.agent.process.template_child import MARK
from pliant.chaos.fault_kinds import FaultKind
from pliant.chaos.inject import FaultInjector, StopRequest
from pliant.chaos.plan import COORDINATOR, Cut, PlannedFault
from pliant.chaos.processes import ProcessRef, find_member
from pliant.chaos.sockets import NetworkFacts, own_addresses
from pliant.chaos.undo import UndoProcess
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind

KINDS = (
    *narrow.KINDS,
    FaultKind.SLOW,
    FaultKind.PARTITION,
    FaultKind.KILL_ALL,
    FaultKind.DAMAGE_CHECKPOINT,
    FaultKind.KILL_AGENT,
    FaultKind.REQUEST_CHECKPOINT,
)
OWN_TTL_S = 10.0  # the lease of a coordinator that is a child of `pliant run`
SLOW_S = (1.0, 3.0)
# While a connection is cut TCP tries again after 0.2 s, 0.4 s more, and so on: what comes through first after a cut of
# 0.9 s may be 1.4 s late. A lease of 3 s is renewed each second.
SHORT_S = (0.2, 0.9)
LONG_LEASES = (1.4, 1.8)
WITH_PEERS = (Cut.ISOLATED, Cut.PEERS, Cut.INBOUND, Cut.OUTBOUND)
LOOK_S = 0.02
_TICK = threading.Event()


class Strikes(narrow.Strikes):
    """Carries faults of every kind out."""

    def __init__(self, job: Job, chance: random.Random) -> None:
        super().__init__(job, chance)
        self._stack = ExitStack()
        self._undo = self._stack.enter_context(UndoProcess())
        self._injector = FaultInjector(self._undo, StopRequest())
        self._lost_by_cut: list[tuple[MemberId, int]] = []  # with its process: it must see that it was left behind

    @property
    def acts(self) -> dict[FaultKind, Callable[[Fault], bool]]:
        return {
            **super().acts,
            FaultKind.SLOW: self._slow,
            FaultKind.PARTITION: self._partition,
            FaultKind.KILL_ALL: self._kill_every_member,
            FaultKind.DAMAGE_CHECKPOINT: self._damage,
            FaultKind.KILL_AGENT: self._run,
            FaultKind.REQUEST_CHECKPOINT: self._checkpoint,
        }

    @property
    def lease_ttl_s(self) -> float:
        return self.job.lease_ttl_s or OWN_TTL_S

    def may(self, fault: Fault) -> bool:
        if not super().may(fault):
            return False
        with self._chronicle.changed:
            able, change, whole, published = (
                len(self.scene.able),
                self.scene.change,
                self.scene.whole,
                self.scene.published,
            )
        if fault.kind is FaultKind.DAMAGE_CHECKPOINT:  # two that are kept, of which one is to be left
            return len(whole) > 1 and whole[-2:] == published[-2:] and not change
        long = fault.lasts_s > self.lease_ttl_s / 2 and fault.cut != Cut.COORDINATOR_ISOLATED
        return fault.kind is not FaultKind.PARTITION or able > (2 if long else 1)

    def finish(self) -> None:
        super().finish()
        for _, pidfd in self._lost_by_cut:
            self._until_exited(pidfd)
            os.close(pidfd)
        self._stack.close()

    # ------------------------------------------------------------------------------------------ slow and cut off

    def _slow(self, fault: Fault) -> bool:
        victim = self._pick(fault, [])
        process = self._process(victim) if victim is not None else None
        if victim is None or process is None:
            return False
        self._mark(fault, victim)
        self._injector.inject(self._planned(fault, victim), {victim: process}, NetworkFacts)
        fault.how = f"{fault.lasts_s:.1f} s"
        fault.effect = self._check_none_gone(fault, f"slow for {fault.lasts_s:.1f} s")
        return True

    def _partition(self, fault: Fault) -> bool:
        cut = Cut(fault.cut)
        victim = None if cut is Cut.COORDINATOR_ISOLATED else self._pick(fault, [])
        processes = self._processes()
        name = COORDINATOR if cut is Cut.COORDINATOR_ISOLATED else victim
        if name not in processes:
            return False
        self._mark(fault, victim)
        fault.how = f"{cut.value} for {fault.lasts_s:.1f} s"
        port = self.job.coordinator_port
        with opened(self.scene.pids[victim] if victim else os.getpid()) as pidfd:
            note = self._injector.inject(
                self._planned(fault, name),
                processes,
                lambda: NetworkFacts(frozenset({("127.0.0.1", port)}), exempt=own_addresses()),
            )
            short = cut is Cut.COORDINATOR_ISOLATED or fault.lasts_s < self.lease_ttl_s / 2
            if short:
                fault.effect = self._check_none_gone(fault, f"{fault.how}, {note}")
                return True
            fault.effect = self._seen_cut_off(fault, cut, note)
            if victim is not None and victim in self.scene.gone:
                self._lost_by_cut.append((victim, os.dup(pidfd)))
        return True

    def _seen_cut_off(self, fault: Fault, cut: Cut, note: str) -> str:
        """After a long cut: whether training went on, with or without the victim."""
        if not self._trained_again(time.time()):
            return ""
        with self._chronicle.changed:
            world = [w for w in self.scene.worlds.values() if fault.victim in w.members]
            gone = [e for e in self._chronicle.since(fault.revision) if isinstance(e, m.MemberGone)]
        if cut in WITH_PEERS:  # two who do not reach one another: it takes a third to say whose fault that is
            pair = [w for w in world if len(w.members) == 2]
            fault.others = frozenset(name for w in pair for name in w.members)
        said = "; ".join(f"{each.member} {each.how}: {each.why}" for each in gone) or "no member is gone"
        return f"{fault.how}, {note}: {said}"

    def _check_none_gone(self, fault: Fault, what: str) -> str:
        """Check that a fault which must cost no member its place did not, and that training went on."""
        if not self._trained_again(time.time()):
            return ""
        with self._chronicle.changed:
            since = list(self._chronicle.since(fault.revision))
        draining = self.scene.draining
        for each in since:
            if isinstance(each, m.MemberGone) and each.how == "lost" and each.member not in draining:
                self.broken.append(f"{each.member} was lost ({each.why}) by what was {what} alone")
        return what

    def _trained_again(self, after: float) -> bool:
        """Wait until a step that was not reported before is."""
        revision = self._chronicle.revision

        def trained(scene: Scene) -> bool:
            new = [each for each in self._chronicle.since(revision) if isinstance(each, m.StepsCommitted)]
            return scene.state.ended or any(each.at > after for each in new)

        seen = self._chronicle.until(trained, EFFECT_S)
        if not seen:
            self.broken.append(f"{EFFECT_S:g} s after a fault no step was reported")
        return seen and not self.scene.state.ended

    def _planned(self, fault: Fault, victim: str) -> PlannedFault:
        """Return the fault as the injector takes it."""
        cut = Cut(fault.cut) if fault.cut else None
        return PlannedFault(fault.number, fault.kind, (victim,), fault.lasts_s, cut)

    def _process(self, member: MemberId) -> ProcessRef | None:
        return find_member(self.scene.pids[member], JOB, member, MARK, self.job.run.pid)

    def _processes(self) -> dict[str, ProcessRef]:
        """All members that are there, and the coordinator."""
        with self._chronicle.changed:
            live = list(self.scene.live)
        found: dict[str, ProcessRef] = {name: process for name in live if (process := self._process(name)) is not None}
        pid = self.job.coordinator_pid
        return {**found, COORDINATOR: ProcessRef(pid, _began(pid))}

    # ---------------------------------------------------------------------------------------------- all of them

    def _kill_every_member(self, fault: Fault) -> bool:
        self._kill_all(fault, lambda: None)
        fault.how = "SIGKILL"
        fault.effect = self._seen_back(fault, fault.revision, self._newest_whole())
        return True

    def _damage(self, fault: Fault) -> bool:
        damaged: list[Checkpoint] = []

        def flip() -> None:
            with self._chronicle.changed:
                damaged.append(self.scene.published[-1])
            self._flip(damaged[0])

        self._kill_all(fault, flip)
        fault.how = f"one byte of {damaged[0].name}, and SIGKILL"
        if self.scene.published[-1] is not damaged[0]:
            fault.effect = ""  # one more was published in that very moment, which is whole
            return True
        name = damaged[0].name
        self._chronicle.until(lambda scene: name in scene.unreadable or scene.state.ended, EFFECT_S)
        if name not in self.scene.unreadable:
            self.broken.append(f"{name} was damaged, every member was killed, and the event log does not report it")
            return True
        with self._chronicle.changed:
            told = [isinstance(e, m.CheckpointUnreadable) and e.name == name for e in self._chronicle.events]
        fault.effect = self._seen_back(fault, told.index(True), self._newest_whole())
        return True

    def _newest_whole(self) -> Lineage:
        with self._chronicle.changed:
            whole = self.scene.whole
        return whole[-1].lineage if whole else GENESIS

    def _flip(self, checkpoint: Checkpoint) -> None:
        folder = self.job.home / "jobs" / JOB / "checkpoints" / checkpoint.name
        file = folder / self._chance.choice(checkpoint.pieces).file
        content = bytearray(file.read_bytes())
        content[self._chance.randrange(len(content))] ^= 1 << self._chance.randrange(8)
        file.chmod(0o600)
        file.write_bytes(content)

    def _run(self, fault: Fault) -> bool:
        with self._chronicle.changed:
            live = set(self.scene.live)
        self._mark(fault, None)
        before = self.job.run.pid
        ended = self.job.run_again()
        fault.how = f"SIGKILL of pliant run, process {before}, now {self.job.run.pid}"
        fault.effect = self._seen_back(fault, fault.revision, None)
        for join in self.joins:  # the same command again asks for as many as it did at first
            join.effect = ""
        self.joins.clear()
        joined = [each for each in self._chronicle.since(fault.revision) if isinstance(each, m.MemberJoined)]
        agents = {name.rpartition(".")[0] for name in live}  # their last workers may join late, and are lost with them
        late = {name for each in joined if (name := each.member.id).rpartition(".")[0] in agents or each.at < ended}
        fault.others = frozenset(live | late)
        return True

    def _kill_all(self, fault: Fault, first: Callable[[], None]) -> None:
        """Stop every member, call that function, kill them, and wait until the event log reports them gone."""
        with ExitStack() as stack:
            with self._chronicle.changed:
                victims = list(self.scene.live)
            handles = []
            for member in victims:
                with suppress(ProcessLookupError):  # it has just left
                    handles.append(stack.enter_context(self._standing(member)))
            self._mark(fault, None)
            fault.others = frozenset(victims)
            first()
            for handle in handles:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            for handle in handles:
                self._until_exited(handle)
            self._chronicle.until(lambda scene: not fault.others & scene.live or scene.state.ended, EFFECT_S)

    @contextmanager
    def _standing(self, member: MemberId) -> Iterator[int]:
        with opened(self.scene.pids[member]) as pidfd:
            signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
            yield pidfd

    def _seen_back(self, fault: Fault, revision: int, expected: Lineage | None) -> str:
        """Wait for a world, formed after that revision, that goes back to a checkpoint, and for a step in it."""

        def rollbacks() -> list[World]:
            formed = [each.world for each in self._chronicle.since(revision) if isinstance(each, m.WorldFormed)]
            return [world for world in formed if world.kind is WorldKind.ROLLBACK]

        self._chronicle.until(
            lambda scene: scene.state.ended or any(world.number <= scene.entered for world in rollbacks()), EFFECT_S
        )
        with self._chronicle.changed:
            worlds = rollbacks()
            fault.mark = self.scene.rollbacks, self.scene.step  # a step of the new history is the next one
        if not worlds:
            self.broken.append(f"{fault.kind}: no member holds the state, and no world went back to a checkpoint")
            return ""
        base = worlds[-1].base
        if expected is not None and base != expected:
            self.broken.append(f"{fault.kind}: the job went back to {base}, and should have to {expected}")
        if not self._trained_again(time.time()):
            return ""
        return f"generation {worlds[-1].number} went back to step {base.step}"

    # ---------------------------------------------------------------------------------------------- on demand

    def _checkpoint(self, fault: Fault) -> bool:
        self._mark(fault, None)
        found = self.job.checkpoint_wanted_at_step("checkpoint")
        fault.how = "pliant checkpoint"

        def published(scene: Scene) -> bool:
            return any(each.name == found["checkpoint"] for each in scene.published)

        if found["code"] or not self._chronicle.until(published, EFFECT_S):
            self.broken.append(f"pliant checkpoint: {found}")
            return True
        fault.effect = f"{found['checkpoint']} was published"
        return True


def _began(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def detail(fault: Fault, chance: random.Random, index: int, lease_ttl_s: float | None) -> None:
    """Say how long it lasts, and who is cut off: every kind of cut, one in three longer than a lease."""
    if fault.kind is FaultKind.SLOW:
        fault.lasts_s = chance.uniform(*SLOW_S)
    if fault.kind is FaultKind.PARTITION:
        cuts = tuple(Cut)
        fault.cut = cuts[index % len(cuts)]
        long = lease_ttl_s is not None and (index + index // len(cuts)) % 3 == 2
        low, high = (lease_ttl_s * leases for leases in LONG_LEASES) if long and lease_ttl_s else SHORT_S
        fault.lasts_s = chance.uniform(low, high)
