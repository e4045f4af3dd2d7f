"""Checks that hold for every job: of the store's history, of the answers and of the agents.

The checks watch the store's writes, replay them on their own and look into every process. A complaint names the
promise (docs/concepts/promises.md) or the rule (docs/internals/protocol.md) that is broken.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Protocol

from pliant.coordinator.service.inbox import Accepted, Answer, Unavailable
from pliant.core.job.evolve import evolve
from pliant.core.job.invariants import state_violations
from pliant.core.messages import Event, StateChanged
from pliant.core.model.job import Job
from pliant.core.supervisor import signals as v
from pliant.stores.base import Store, Write
from pliant.wire.codec import decode_state, encode_state
from pliant_sim.requests import decode_event

if TYPE_CHECKING:
    from pliant_sim.processes.agent import SimulatedAgent
    from pliant_sim.processes.coordinator import Back, Given

COMPLAINTS_MAX = 20


class CheckedJob(Protocol):
    """The job that the checks of its history are given."""

    @property
    def job(self) -> str: ...

    @property
    def now(self) -> float: ...

    @property
    def store(self) -> Store: ...

    @property
    def suspected(self) -> Container[str]: ...

    def is_isolated(self, coordinator: str) -> bool: ...

    def tell(self, what: str) -> None: ...

    def tell_event(self, event: Event) -> None: ...


class StoreChecks:
    """Collects complaints; a simulation with any has failed."""

    def __init__(self, sim: CheckedJob) -> None:
        self._sim = sim
        self.complaints: list[str] = []
        self.job: Job | None = None
        self.revision = 0
        self.generations = 0
        self.writer = ""  # the coordinator whose pump runs; empty if a write comes late

    def complain(self, what: str) -> None:
        if len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(f"{self._sim.now:.3f} s: {what}")
            self._sim.tell(f"VIOLATION {what}")

    def wrote(self, write: Write, revision: int) -> None:
        """Replay a write that the store accepted, and check the state and the change."""
        if write.expected != self.revision or revision != self.revision + len(write.events):
            self.complain(f"P5: a write at revision {write.expected} followed revision {self.revision}")
        self.revision = revision
        for event in map(decode_event, write.events):
            self._sim.tell_event(event)
            after = evolve(self.job, event)
            self.check_reason(event)
            self.check_event(event, after)
            self.job = after
        if self.job is not None:
            for wrong in state_violations(self.job):
                self.complain(wrong)

    def check_event(self, event: Event, after: Job) -> None:
        """Check an event; `job` is the state before it, `after` the state after it."""

    def check_reason(self, event: Event) -> None:
        """P8: every change of the job's state has a reason."""
        if isinstance(event, StateChanged) and not event.why:
            self.complain(f"P8: the job is {event.state.value} without a reason")

    def check_expiry(self, name: str, why: str) -> None:
        """Rule 19: an isolated coordinator expires nothing, except what closed its connection."""
        expired = "lease ran out" in why and self.writer and name not in self._sim.suspected
        if expired and self._sim.is_isolated(self.writer):
            self.complain(f"rule 19: {name} was expired by {self.writer}, which is isolated")

    def answered(self, coordinator: str, given: Given, answer: Answer) -> None:
        """P5: the store has what a coordinator acknowledges."""
        if isinstance(answer, Accepted) and answer.revision > self.revision:
            self.complain(
                f"P5: {coordinator} acknowledged {answer.revision} to {given.sender}, the store is at {self.revision}"
            )

    def is_answer(self, answer: Back) -> bool:
        return not isinstance(answer, Unavailable)

    def agent_decided(self, agent: SimulatedAgent, actions: tuple[v.Action, ...]) -> None:
        """Check an agent's actions on a signal."""
        known = agent.state.workers
        if forgotten := [member for member, process in agent.processes.items() if process.up and member not in known]:
            self.complain(f"{agent.machine} has forgotten {sorted(forgotten)}")
        order = agent.state.order
        for action in actions:
            if isinstance(action, v.Offer) and (up := agent.running):
                self.complain(f"{agent.machine} offers ports while {sorted(up)} run")
            stopped = isinstance(action, v.Terminate) and order is not None and order.live
            if stopped and not agent.state.leaving and not agent.state.ended:
                self.complain(f"P1: {agent.machine} stops a worker of a live job: {action}")

    def check_log(self) -> None:
        """P5: the event log alone gives the stored state, byte for byte."""
        stored = self._sim.store.read(self._sim.job)
        replayed: Job | None = None
        for entry in self._sim.store.events(self._sim.job, 0, 1_000_000):
            replayed = evolve(replayed, decode_event(entry.data))
        if stored is None or replayed is None:
            self.complain("P5: there is no log to replay")
            return
        resumed = decode_state(stored.record, Job)
        for data in stored.tail:
            resumed = evolve(resumed, decode_event(data))
        if encode_state(replayed) != encode_state(resumed):
            self.complain("P5: the log and the record give two different states")
