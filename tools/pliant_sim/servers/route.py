"""A primary's stream of messages to one other server: in order, until it breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pliant.ps.copies import FollowedBuckets
from pliant_sim.servers.later import LaterValue

if TYPE_CHECKING:
    from pliant_sim.servers.server import SimulatedServer

SILENCE_S = 1.5  # a stream to a process that is gone, or cut off, breaks after so long


class SimulatedRoute:
    def __init__(self, source: SimulatedServer, target: SimulatedServer, layout: int, server: int) -> None:
        self._source, self.target, self._layout = source, target, layout
        self.server = server
        self.followed = FollowedBuckets()
        self.broken = False
        self._delivers = source.sim.chance.random() < 0.5  # messages that are on their way when it breaks
        self._sent: list[LaterValue] = []  # without an answer
        self._arrives_at = 0.0

    def send(self, kind: str, content: Any) -> LaterValue:
        """Return, later, whether the other server carried it out."""
        promise = LaterValue()
        if self.broken:
            promise.keep(False)
            return promise
        self._sent.append(promise)
        self._in_order(self.target.act, self._arrive, kind, content, promise)
        return promise

    def barrier(self) -> LaterValue:
        """Return, later, whether everything that was sent so far was carried out."""
        if self._sent:
            return self._sent[-1]
        promise = LaterValue()
        promise.keep(not self.broken)
        return promise

    def close(self) -> None:
        """End the stream. What was not answered fails."""
        self.broken = True
        sent, self._sent = self._sent, []
        for promise in sent:
            promise.keep(False)

    def break_now(self) -> None:
        """Break the stream. Its source finds out when it runs."""
        if not self.broken:
            self.broken = True
            self._source.act(self._see_break)

    def _see_break(self) -> None:
        self.close()
        self._source.route_broken(self)

    def _in_order(self, act: Any, *args: object) -> None:
        sim = self._source.sim
        if not self.target.up or sim.is_cut(self._source.id, self.target.id):
            sim.after(SILENCE_S, self.break_now)
            return
        self._arrives_at = max(self._arrives_at, sim.now + sim.delay_s()) + 0.0001
        sim.after(self._arrives_at - sim.now, act, *args)

    def _arrive(self, kind: str, content: Any, promise: LaterValue) -> None:
        if self.broken and not self._delivers:
            return
        if not self.target.take(self._layout, kind, content):
            self.break_now()
            return
        self._in_order(self._source.act, self._answered, promise)

    def _answered(self, promise: LaterValue) -> None:
        if promise in self._sent:
            self._sent.remove(promise)
            promise.keep(True)
