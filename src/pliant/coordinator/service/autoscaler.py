"""The leader's measurements of jobs with `--autoscale`, a cost limit or a deadline, and its advice about sizes.

What it measures is in its memory only. A new leader measures anew: until then the jobs keep their sizes.
"""

from __future__ import annotations

from collections.abc import Iterable

from pliant.coordinator.service.pump import Service
from pliant.core.autoscale import JobPace, advise, facts_of
from pliant.core.messages import Advise, Event, StepsCommitted
from pliant.core.model.job import Autoscale, Job


class Autoscaler:
    """Call `note_pump` after every pump. Advice is submitted as a command of the service itself."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._paces = service.scheduler.paces  # the scheduler projects costs and ends with them

    def note_pump(self, decided: Iterable[tuple[str, tuple[Event, ...]]]) -> None:
        """Measure with the events of a pump, and advise where a job's steps were reported."""
        if not self._service.leads:
            self._paces.clear()
            return
        for name, events in decided:
            found = self._service.job(name)
            if found is None or found[0].state.ended or not _is_measured(found[0]):
                self._paces.pop(name, None)
            else:
                self._note(found[0], events)

    def _note(self, job: Job, events: tuple[Event, ...]) -> None:
        pace = self._paces.setdefault(job.name, JobPace.of(job))
        for event in events:
            pace.add(event)
        facts = facts_of(job) if job.spec.autoscale is not Autoscale.OFF else None
        if facts is None or not any(isinstance(event, StepsCommitted) for event in events):
            return
        advice = advise(facts, pace)
        if advice.size not in (facts.target, job.advised):
            self._service.submit(job.name, Advise(advice.size, advice.why), None)


def _is_measured(job: Job) -> bool:
    spec = job.spec
    return spec.autoscale is not Autoscale.OFF or spec.at_most_cost is not None or spec.deadline is not None
