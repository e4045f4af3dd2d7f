"""Advice about a job's size through its recorded history."""

from __future__ import annotations

from pliant.core.autoscale.advise import Advice, advise, facts_of
from pliant.core.autoscale.pace import JobPace
from pliant.core.job.evolve import evolve
from pliant.core.messages import Event, StepsCommitted
from pliant.core.model.job import Job


class ScalingReplay:
    """Call `add` with all events of a job, in order. `advice` has each change of the advice: time, size and advice."""

    def __init__(self) -> None:
        self.pace = JobPace()
        self.advice: list[tuple[float, int, Advice]] = []
        self.last: Advice | None = None  # the newest, also if it is to stay
        self._job: Job | None = None

    def add(self, event: Event) -> None:
        """Add the next event."""
        job = self._job = evolve(self._job, event)
        self.pace.add(event)
        facts = facts_of(job) if isinstance(event, StepsCommitted) else None
        if facts is None:
            return
        self.last = advise(facts, self.pace)
        change = facts.target, self.last.size
        if facts.target != self.last.size and change not in [(size, each.size) for _, size, each in self.advice[-1:]]:
            self.advice.append((event.at, facts.target, self.last))
