"""Workers and the launches that start them together: values only, part of `model`, where others find these, too."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.model.names import AgentId, MemberId


@dataclass(frozen=True, slots=True)
class Seat:
    """One worker's place in a launch. Its agent is the member on its behalf."""

    member: MemberId
    agent: AgentId
    role: str  # "worker", or another one of TensorFlow's
    address: str  # its agent's host, and a port that was free there


@dataclass(frozen=True, slots=True)
class SeatEnd:
    """How a launched worker ended; the code is negative for a signal."""

    member: MemberId
    code: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """The workers of one generation, started together because they know nothing of Pliant.

    A worker's rank is its seat's index. `over` says why they are all stopped; empty: they run. `lost` are agents that
    went, or were started again, before they had said that they were ready.
    """

    number: int
    seats: tuple[Seat, ...]
    why: str
    restarts: int = 0  # launches before it in this attempt
    over: str = ""
    ends: tuple[SeatEnd, ...] = ()
    lost: frozenset[AgentId] = frozenset()

    def seat_of(self, member: MemberId) -> Seat | None:
        return next((seat for seat in self.seats if seat.member == member), None)

    @property
    def done(self) -> frozenset[MemberId]:
        """Who ended well."""
        return frozenset(end.member for end in self.ends if end.code == 0)
