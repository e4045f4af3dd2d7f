"""The leader's measurements of jobs in a queue or with `--autoscale`, and its advice about sizes.

What it measures is in its memory only. A new leader measures anew: until then the jobs keep their sizes.
"""

from __future__ import annotations

from collections.abc import Iterable

from pliant.coordinator.service.pump import Service
from pliant.core.autoscale import advise, facts_of
from pliant.core.messages import Advise, Event, StepsCommitted
from pliant.core.model.job import Autoscale, Job


class Autoscaler:
    """Call `note_pump` after every pump. Advice is submitted as a command of the service itself."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._scheduler = service.scheduler  # it divides the pool by what is measured

    def note_pump(self, decided: Iterable[tuple[str, tuple[Event, ...]]]) -> None:
        """Measure with the events of a pump, and advise where a job's steps were reported."""
        if not self._service.leads:
            self._scheduler.paces.clear()
            return
        for name, events in decided:
            found = self._service.job(name)
            if found is None:
                self._scheduler.paces.pop(name, None)
                continue
            self._scheduler.note_events(found[0], events)
            if any(isinstance(event, StepsCommitted) for event in events):
                self._advise(found[0])

    def _advise(self, job: Job) -> None:
        pace = self._scheduler.paces.get(job.name)
        facts = facts_of(job) if job.spec.autoscale is not Autoscale.OFF else None
        if facts is None or pace is None:
            return
        advice = advise(facts, pace)
        if advice.size not in (facts.target, job.advised):
            self._service.submit(job.name, Advise(advice.size, advice.why), None)
