"""Five kinds of faults, and the event that proves the effect of each.

A fault strikes a member of the current world while the job runs, or the coordinator of such a job. It counts if the
event log shows its effect later.

The campaign shares the means of `pliant chaos` (`pliant.chaos.inject`, `sockets`, `undo`), but not its choice of
faults. `pliant chaos` strikes a user's job by the clock, from outside, without knowledge of the script. The campaign
holds a worker at a place in its step (`chaos.probe`), strikes it there, waits for the proof in the event log, and has
kinds that a user's tool must not have: damaged checkpoints, a killed `pliant run`, joins. A common engine would need
both sets of waits and would be longer than the two.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.chronicle import Scene
from chaos.job import JOB, Job, exited, opened
from chaos.probe import Place, Whereabouts
from chaos.steps import Mark, Steps
from pliant.chaos.fault_kinds import FaultKind
from pliant.core import messages as m
from pliant.core.model.job import JobState, Target
from pliant.core.model.names import MemberId
from pliant.errors import Refused

KINDS = (FaultKind.KILL, FaultKind.STOP, FaultKind.JOIN, FaultKind.DRAIN, FaultKind.KILL_COORDINATOR)
GO_BACK = (
    FaultKind.KILL_ALL,
    FaultKind.DAMAGE_CHECKPOINT,
    FaultKind.KILL_AGENT,
)  # no member holds the state afterwards
TARGET_MIN, TARGET_MAX = 2, 4
LEFT_BEHIND = {FaultKind.KILL: 1, FaultKind.STOP: 1, FaultKind.DRAIN: 1}  # holders, at least
AIM_S = 5.0  # how long to wait for a member to come to a place, before the fault is put off
EXIT_S = 60.0  # how long a fenced worker may take to see that it is
EFFECT_S = 120.0  # without an effect, however slow the machine is, there is none
LOOK_S = 0.1  # between two looks at who was started
FENCED = 75
_TICK = threading.Event()


@dataclass(eq=False)  # two that are planned alike are two: each has its own victim
class Fault:
    """One fault: what is planned, and what came of it."""

    kind: FaultKind
    aim: Place | None = None  # where the victim is to be struck; None: wherever it is
    during: bool = False  # strike while another change is under way
    number: int = 0
    victim: str = ""
    place: Place | None = None
    change: str = ""  # the change that was under way
    how: str = ""
    effect: str = ""  # what the event log says of it; empty: nothing, and the fault does not count
    revision: int = 0
    at: float = 0.0
    step: int = 0
    mark: Mark = (0, 0)
    until_step_s: float = 0.0
    lasts_s: float = 0.0  # for what is undone again
    cut: str = ""  # who is cut off from whom, as `pliant.chaos.plan` calls it
    others: frozenset[str] = frozenset()  # members that it takes along with the victim

    @property
    def counts(self) -> bool:
        return bool(self.effect)

    @property
    def goes_back(self) -> bool:
        """Return whether no member that holds the state is left."""
        return self.kind in GO_BACK

    @property
    def meets_change(self) -> bool:
        """Return whether another change must be under way when it strikes."""
        return self.during or self.aim in (Place.WIRING, Place.TRANSFER)

    def __str__(self) -> str:
        place = f" in {self.place.name.lower()}" if self.place is not None else ""
        change = f" while {self.change}" if self.change else ""
        return (
            f"{self.kind} {self.victim or self.how}{place}{change} at step {self.step}: "
            f"{self.effect or 'NO EFFECT'}; next step after {self.until_step_s:.2f} s"
        )


class Strikes:
    """Carries faults out, each when it `may`. A strike returns False if it missed its moment: the fault is put off."""

    def __init__(self, job: Job, chance: random.Random) -> None:
        self.job = job
        self.broken: list[str] = []  # promises that were not kept
        self.joins: list[Fault] = []  # whose effect is still to be seen
        self._chance = chance
        self._chronicle = job.chronicle
        self._steps = Steps(job)
        self._struck_joining = False  # the last fault, while a join was under way
        self._fenced: list[tuple[MemberId, int]] = []  # stopped members, with a handle of the process
        self._views: dict[MemberId, Whereabouts] = {}
        self._seen_coming = (0.0, False)  # when that was looked at last, and what was seen

    @property
    def scene(self) -> Scene:
        return self._chronicle.scene

    def strike(self, fault: Fault) -> bool:
        """Do it, and wait for its effect (a join's comes later: see `settle`)."""
        self._struck_joining = bool(self.joins)
        if not self.acts[fault.kind](fault):
            self._struck_joining = False
            return False
        self._chronicle.until(lambda scene: self._steps.mark > fault.mark or scene.state.ended)
        fault.until_step_s = self._steps.after(fault.mark, fault.at) - fault.at
        return True

    @property
    def acts(self) -> dict[FaultKind, Callable[[Fault], bool]]:
        """Return what is done for each kind."""
        return {
            FaultKind.KILL: self._kill,
            FaultKind.STOP: self._stop,
            FaultKind.JOIN: self._join,
            FaultKind.DRAIN: self._drain,
            FaultKind.KILL_COORDINATOR: self._coordinator,
        }

    # ----------------------------------------------------------------------------------------------- the moment

    def may(self, fault: Fault) -> bool:
        """Return whether to strike now: the job runs, another member holds the state, and a change comes if it must."""
        self.settle()
        with self._chronicle.changed:
            scene, able = self.scene, len(self.scene.able)
            state, target, change = scene.state, scene.target, scene.change
        if state is not JobState.RUNNING or able <= LEFT_BEHIND.get(fault.kind, 0):
            return False
        if fault.kind is FaultKind.JOIN and (self.joins or target >= TARGET_MAX):
            return False
        if self.joins and (
            self._struck_joining or not (fault.meets_change or fault.kind is FaultKind.KILL_COORDINATOR)
        ):
            return False  # one strike at a join, and then it may come to its end
        return not fault.meets_change or bool(change) or self._a_worker_comes()

    @property
    def nothing_comes(self) -> bool:
        """Return whether every member that was asked for is there, so that no change comes by itself."""
        with self._chronicle.changed:
            scene = self.scene
            there = len(scene.able) >= scene.target and not scene.change and not scene.draining & scene.live
            return there and not self.joins and not self._a_worker_comes()

    def _a_worker_comes(self) -> bool:
        """Return whether a worker runs that has not joined. It reports just before it joins, or is killed before."""
        looked_at, seen = self._seen_coming
        if (now := time.monotonic()) > looked_at + LOOK_S:
            with self._chronicle.changed:
                joined = {str(pid) for pid in self.scene.pids.values()}
            started = {path.stem for path in self.job.folder.glob("*.said")}
            seen = any(Path("/proc", pid).exists() for pid in started - joined)
            self._seen_coming = now, seen
        return seen

    @contextmanager
    def _moment(self, fault: Fault) -> Any:
        """Hold members that come to the fault's place until the block is over. Yield those that are held."""
        aim = fault.aim
        if aim is None and fault.during:
            aim = self._chance.choice((Place.WIRING, Place.TRANSFER))
        if aim is None:
            yield []
            return
        began = time.monotonic()
        self.job.wish.armed = aim
        try:
            held: list[MemberId] = []
            while not held and time.monotonic() - began < AIM_S and not self.scene.state.ended:
                _TICK.wait(0.001)
                held = [member for member in self._candidates() if self._view(member).held is aim]
            yield held
        finally:
            self.job.wish.armed = Place.BETWEEN

    def _candidates(self) -> list[MemberId]:
        """Return the members that have a rank: in the current world, or in the one that is being formed."""
        with self._chronicle.changed:
            scene = self.scene
            newest = scene.worlds.get(max(scene.worlds, default=0))
            names = dict.fromkeys([*scene.ranked, *(newest.members if newest is not None else ())])
            return [member for member in names if member in scene.live]

    def _view(self, member: MemberId) -> Whereabouts:
        if member not in self._views:
            self._views[member] = self.job.whereabouts(member)
        return self._views[member]

    def _change_now(self, victim: MemberId | None = None) -> str:
        """The change under way in this moment, from the event log or from what the workers are doing."""
        with self._chronicle.changed:
            if change := self.scene.change:
                return change
        busy = [member for member in self._candidates() if member != victim and self._view(member).changing]
        return f"{busy[0]} is {self._view(busy[0]).place.name.lower()}" if busy else ""

    def _mark(self, fault: Fault, victim: MemberId | None) -> None:
        fault.at, fault.step, fault.mark = time.monotonic(), self._steps.now, self._steps.mark
        fault.victim = victim or ""
        fault.change = self._change_now()
        with self._chronicle.changed:
            fault.revision = self._chronicle.revision
        if victim is not None:
            fault.place = self._view(victim).place

    def _pick(self, fault: Fault, held: list[MemberId]) -> MemberId | None:
        """Return the victim: a member held at the place, or any of the world. Another member must hold the state."""
        with self._chronicle.changed:
            able, ranked = self.scene.able, self.scene.ranked
        choice = held if fault.aim is not None else ranked
        choice = [member for member in choice if any(other != member for other in able)]
        return self._chance.choice(choice) if choice and self.scene.state is JobState.RUNNING else None

    # ------------------------------------------------------------------------------------------------ the kinds

    def _kill(self, fault: Fault) -> bool:
        with self._moment(fault) as held:
            victim = self._pick(fault, held)
            if victim is None:
                return False
            with opened(self.scene.pids[victim]) as pidfd:
                self._mark(fault, victim)
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                self._until_exited(pidfd)
            fault.place = self._view(victim).place  # where it really was: it writes nothing any more
        fault.how = "SIGKILL"
        fault.effect = self._seen_gone(victim, "lost", "signal 9")
        return True

    def _stop(self, fault: Fault) -> bool:
        with self._moment(fault) as held:
            victim = self._pick(fault, held)
            if victim is None:
                return False
            with opened(self.scene.pids[victim]) as pidfd:
                self._mark(fault, victim)
                signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
                self.job.wish.armed = Place.BETWEEN
                try:
                    fault.effect = self._seen_gone(victim, "lost", "")  # its agent kills it, or its lease runs out
                finally:
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(pidfd, signal.SIGCONT)
                self._fenced.append((victim, os.dup(pidfd)))
        fault.how = "SIGSTOP"
        return True

    def finish(self) -> None:
        """Call at the end: a member that was stopped must have been killed, or have noticed that it was fenced."""
        self._steps.close()
        for victim, pidfd in self._fenced:
            self._until_exited(pidfd)
            os.close(pidfd)
            codes = [each["left"] for each in self.job.said() if each["member"] == victim and "left" in each]
            if codes not in ([FENCED], []):
                self.broken.append(f"{victim} was fenced: it should have left with {FENCED}, and did with {codes}")

    def _drain(self, fault: Fault) -> bool:
        ways = ["pliant drain", "SIGTERM"]
        full = len(self.scene.able) >= self.scene.target  # else no member would have to go
        if self.scene.target > TARGET_MIN and full and not self.joins:
            ways += ["pliant resize"] * 6  # each makes room for a join
        fault.how = self._chance.choice(ways)
        with self._moment(fault) as held:
            victim = self._pick(fault, held)
            if victim is None or (fault.during and not held):
                return False
            if fault.how == "pliant resize":
                self._mark(fault, None)
                self.send(m.Resize(Target(self.scene.target - 1)))
            else:
                self._mark(fault, victim)
                if fault.how == "SIGTERM":
                    with opened(self.scene.pids[victim]) as pidfd:
                        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                else:
                    self.send(m.Drain(victim, 30.0, "chaos"))
        if fault.how == "pliant resize":
            fault.victim = self._who_left(fault.revision)
            if not fault.victim:
                return True  # a fault struck before it made room: no member had to go, and this one does not count
        fault.effect = self._seen_gone(MemberId(fault.victim), "left", "")
        return True

    def _join(self, fault: Fault) -> bool:
        with self._moment(fault) as held:
            if fault.during and not held:
                return False
            self._mark(fault, None)
            wanted = self.scene.target + 1
            self.send(m.Resize(Target(wanted)))
            fault.how = f"resize to {wanted}"
        self._chronicle.until(lambda scene: scene.target == wanted)
        self.joins.append(fault)
        fault.effect = "asked for"
        return True

    def _coordinator(self, fault: Fault) -> bool:
        with self._moment(fault) as held:
            if fault.during and not held:
                return False
            self._mark(fault, None)
            before = self.job.coordinator_pid
            self.job.kill_coordinator()
        _TICK.wait(self._chance.choice((0.0, 0.0, 1.0)) * self._chance.random())
        self.job.bring_coordinator_back(before)
        after = time.time()
        fault.how = "SIGKILL"
        self._chronicle.until(
            lambda scene: (
                scene.state.ended
                or any(isinstance(e, m.StepsCommitted) and e.at > after for e in self._chronicle.since(fault.revision))
            )
        )
        fault.effect = (
            f"process {self.job.coordinator_pid} after {before} committed steps from revision {fault.revision} on"
        )
        return True

    # -------------------------------------------------------------------------------------------------- effects

    def settle(self) -> bool:
        """See whether a joiner holds the state by now, so that the world is as large as was asked for; True if so."""
        for fault in list(self.joins):
            wanted = int(fault.how.rpartition(" ")[2])
            fresh: set[str] = set()
            for event in self._chronicle.since(fault.revision):
                if isinstance(event, m.MemberJoined):
                    fresh.add(event.member.id)
                if isinstance(event, m.HoldersChanged) and len(event.holders) >= wanted:
                    fault.victim = ", ".join(sorted(fresh & event.holders))
                    fault.effect = f"a world of {len(event.holders)} holders in generation {event.generation}"
                    self.joins.remove(fault)
                    break
        return not self.joins

    def send(self, command: m.Resize | m.Drain) -> None:
        """Say it; in vain if the job has just ended."""
        try:
            self.job.client.send(JOB, command)
        except Refused as refused:
            if refused.code != m.Code.ENDED:
                raise

    def _seen_gone(self, victim: MemberId, how: str, why: str) -> str:
        seen = self._chronicle.until(lambda scene: victim in scene.gone or scene.state.ended, EFFECT_S)
        if not seen:
            self.broken.append(f"{victim} was struck {EFFECT_S:g} s ago, and the event log does not show it")
        gone = self.scene.gone.get(victim)
        if gone is None:
            return ""
        return f"{gone.how}: {gone.why}" if gone.how == how and why in gone.why else ""

    def _who_left(self, revision: int) -> str:
        found: list[str] = []

        def looked(scene: Scene) -> bool:
            found[:] = [
                each.member
                for each in self._chronicle.since(revision)
                if isinstance(each, m.MemberGone) and each.how == "left"
            ]
            return bool(found) or scene.state.ended

        self._chronicle.until(looked, EFFECT_S)
        return found[0] if found else ""

    def _until_exited(self, pidfd: int) -> None:
        until = time.monotonic() + EXIT_S
        while not exited(pidfd) and time.monotonic() < until:
            _TICK.wait(0.005)
        if not exited(pidfd):
            self.broken.append(f"a worker that was struck is still there after {EXIT_S:g} s")
