"""Launches: workers that are started together, without joining by themselves."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.model.names import AgentId, MemberId


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker's place in a launch. Its agent acts as the member on its behalf."""

    member: MemberId
    agent: AgentId
    role: str  # "worker", or another role of TensorFlow
    address: str  # its agent's host, and a free port of it


@dataclass(frozen=True, slots=True)
class SeatEnd:
    """The end of a launched worker; the code is negative for a signal. `early`: soon after the launch."""

    member: MemberId
    code: int
    error: str = ""
    early: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """The workers of one generation, started together because they do not use Pliant's API.

    A worker's rank is the index of its seat. `over` is the reason why all of them are stopped; empty: they run. `lost`
    holds agents that left, or restarted, before they reported ready.
    """

    number: int
    seats: tuple[Seat, ...]
    why: str
    restarts: int = 0  # earlier launches of this attempt
    over: str = ""
    ends: tuple[SeatEnd, ...] = ()
    lost: frozenset[AgentId] = frozenset()
    size_before: int = 0  # of the launch before, if that one ran until another size was wanted; else 0

    def seat_of(self, member: MemberId) -> Seat | None:
        return next((seat for seat in self.seats if seat.member == member), None)

    @property
    def done(self) -> frozenset[MemberId]:
        """The members that ended with exit code 0."""
        return frozenset(end.member for end in self.ends if end.code == 0)
