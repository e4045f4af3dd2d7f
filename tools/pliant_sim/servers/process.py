"""A simulated process of a job with parameter servers: it can be stopped, resumed and killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pliant.core.model.names import MemberId
from pliant_sim.servers.later import LaterValue

if TYPE_CHECKING:
    from pliant.core.ps.model import BucketLayout
    from pliant_sim.servers.world import ServerSimulation

ANSWER_S = 2.0  # without an answer for so long, a request is given up


class SimulatedProcess:
    """Messages and timers of a stopped process wait until it resumes; those of a killed one are lost."""

    def __init__(self, sim: ServerSimulation, name: str) -> None:
        self.sim = sim
        self.id = MemberId(name)
        self.up = True
        self.paused = False
        self._backlog: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def act(self, act: Callable[..., None], *args: object) -> None:
        """Run an action of this process, now or when it resumes."""
        if self.paused:
            self._backlog.append((act, args))
        elif self.up:
            act(*args)

    def resume(self) -> None:
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for act, args in backlog:
            self.act(act, *args)

    def follow(self, layout: BucketLayout) -> None:
        """Take the newest layout from the coordinator."""
        raise NotImplementedError

    def sleep(self, seconds: float) -> LaterValue:
        promise = LaterValue()
        self.sim.after(seconds, self.act, promise.keep, None)
        return promise

    def request(self, target: MemberId, method: str, *args: object) -> LaterValue:
        """Call a method of another process, which answers through its last argument; None: no answer came."""
        promise = LaterValue()
        other = self.sim.servers.get(target)
        if other is not None:

            def answer(value: Any) -> None:
                self.sim.send(target, self.id, self.act, promise.keep, value)

            self.sim.send(self.id, target, other.act, getattr(other, method), *args, answer)
        self.sim.after(ANSWER_S, self.act, promise.keep, None)
        return promise
