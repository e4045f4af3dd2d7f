"""A simulated process's connection to the coordinators: the real choice of endpoints and deadlines.

A coordinator that is frozen, or whose machine is gone, neither answers nor resets a connection. A crashed one refuses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pliant.coordinator.service.inbox import Unavailable
from pliant.core.endpoints import (
    Endpoints,
    command_limit_s,
    endpoints_of,
    in_order,
    note_answer,
    note_silence,
    renewal_limit_s,
    silence_s,
)
from pliant.core.leases import LEASE_TTL_S
from pliant.wire.api import Renew, RenewAgent
from pliant_sim.engine import Deadlines
from pliant_sim.processes.coordinator import WATCH_S, AgentPoll, Ask, Back, MemberWatch

if TYPE_CHECKING:
    from pliant_sim.simulation import Simulation

REFUSED_S = 0.005
PAUSE_S = 0.5

Given = Ask | AgentPoll | MemberWatch


class Limits:
    """The deadlines of the requests of all processes at one coordinator."""

    def __init__(self, sim: Simulation) -> None:
        count = len(sim.coordinators)
        self.renewals = Deadlines(sim, renewal_limit_s(LEASE_TTL_S, count))
        self.commands = Deadlines(sim, command_limit_s(LEASE_TTL_S, count))
        self.watches = Deadlines(sim, command_limit_s(LEASE_TTL_S, count) + WATCH_S)


@dataclass(slots=True)
class _Call:
    """One request, until a coordinator answers it or the patience is over."""

    given: Given
    deadlines: Deadlines
    until: float
    todo: list[int] = field(default_factory=list)
    endpoint: int = 0
    asked_at: float = 0.0


class SimulatedClient:
    """The requests of one process, named `sender` in them."""

    def __init__(self, sim: Simulation, sender: str, limits: Limits) -> None:
        self._sim = sim
        self._sender = sender
        self.known: Endpoints = endpoints_of(tuple(each.name for each in sim.coordinators))
        self._limits = limits
        self._attempts = 0
        self._calls: dict[int, _Call] = {}  # by the number of the attempt that waits for an answer

    def call(self, given: Given, patience_s: float = 0.0) -> None:
        """Send a request to each coordinator in turn, at least once to each that was not silent."""
        if not isinstance(given, Ask):
            deadlines = self._limits.watches
        elif isinstance(given.request, Renew | RenewAgent):
            deadlines = self._limits.renewals
        else:
            deadlines = self._limits.commands
        self._circle(_Call(given, deadlines, self._sim.now + patience_s))

    def _circle(self, call: _Call) -> None:
        call.todo = list(in_order(self.known, self._sim.now))
        self._attempt(call)

    def _attempt(self, call: _Call) -> None:
        sim = self._sim
        call.endpoint, call.asked_at = call.todo.pop(0), sim.now
        self._attempts += 1
        self._calls[self._attempts] = call
        coordinator = sim.coordinators[call.endpoint]
        if coordinator.refuses:
            sim.after(REFUSED_S, self._failed, self._attempts)
            return
        sim.send(self._sender, coordinator.name, coordinator.receive, call.given._replace(attempt=self._attempts))
        call.deadlines.add(self._calls, self._attempts, self._too_late)

    def _too_late(self, attempt: int) -> None:
        call = self._calls[attempt]
        self.known = note_silence(self.known, call.endpoint, silence_s(LEASE_TTL_S), call.asked_at, self._sim.now)
        self._failed(attempt)

    def _failed(self, attempt: int) -> None:
        call = self._calls.pop(attempt, None)
        if call is None:
            return
        if call.todo:
            self._attempt(call)
        elif self._sim.now + PAUSE_S < call.until:
            self._sim.after(self._sim.chance.uniform(PAUSE_S / 2, PAUSE_S), self._circle, call)
        else:
            self._sim.call_failed(call.given)

    def reset(self, coordinator: int) -> None:
        """Break the connections to a coordinator that crashed."""
        for attempt in [attempt for attempt, call in self._calls.items() if call.endpoint == coordinator]:
            self._failed(attempt)

    def arrived(self, given: Given, answer: Back) -> bool:
        """Note an answer. False if it is of no use: the request was given up, or another coordinator is asked."""
        call = self._calls.get(given.attempt)
        if call is None:
            return False
        if isinstance(answer, Unavailable):
            self._failed(given.attempt)
            return False
        del self._calls[given.attempt]
        self.known = note_answer(self.known, call.endpoint, call.asked_at, self._sim.now)
        return True
