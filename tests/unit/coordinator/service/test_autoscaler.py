"""The leader's advice about the sizes of jobs, from the events of its pumps."""

from __future__ import annotations

from dataclasses import replace

from pliant.coordinator.service.autoscaler import Autoscaler
from pliant.coordinator.service.scheduler import Scheduler
from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.messages import Command
from pliant.core.model.job import Autoscale, Job, JobState, Target
from unit.core.build import TERMS, A, lines, running, with_spec


class FakeService:
    """A service with one job, which notes the commands that are submitted."""

    def __init__(self, how: Autoscale) -> None:
        grid = Grid(samples=6000, batch=10, slots=6, epochs=100)
        job = with_spec(running(2), autoscale=how, size_min=1, size_max=4)
        self.known: Job | None = replace(job, target=Target(2), terms=replace(TERMS, grid=grid))
        self.leads = True
        self.scheduler = Scheduler()
        self.submitted: list[tuple[str, Command]] = []

    def job(self, name: str) -> tuple[Job, int] | None:
        return None if self.known is None else (self.known, 1)

    def submit(self, job: str, command: Command, ticket: object) -> bool:
        assert ticket is None
        self.submitted.append((job, command))
        return True


def reported(service: FakeService, reports: int) -> Autoscaler:
    """An autoscaler that saw so many reports, one every 40 s."""
    autoscaler = Autoscaler(service)  # type: ignore[arg-type]  # a stand-in
    assert service.known is not None
    committed = lines(service.known.durable, 1, 1)
    for number in range(reports):
        autoscaler.note_pump([("demo", (m.StepsCommitted(40.0 * number, 1, A, committed),))])
    return autoscaler


def test_advice_is_submitted_once_a_size_was_measured() -> None:
    service = FakeService(Autoscale.ADVISE)
    reported(service, 2)
    assert [(name, type(command).__name__) for name, command in service.submitted] == [("demo", "Advise")]
    (_, command) = service.submitted[0]
    assert isinstance(command, m.Advise)
    assert command.size == 1


def test_jobs_without_autoscaling_get_no_advice_and_other_events_none() -> None:
    off = FakeService(Autoscale.OFF)
    reported(off, 3)
    assert off.submitted == []
    service = FakeService(Autoscale.ON)
    autoscaler = reported(service, 1)
    autoscaler.note_pump([("demo", (m.Granted(50.0, 2, "x"),))])
    assert service.submitted == []


def test_a_job_in_a_queue_is_measured_without_advice() -> None:
    service = FakeService(Autoscale.OFF)
    reported(service, 3)
    assert service.scheduler.paces == {}
    assert service.known is not None
    service.known = with_spec(service.known, queue="default")
    reported(service, 3)
    assert service.submitted == []
    assert service.scheduler.paces["demo"].speeds == ((2, 0.25),)


def test_a_coordinator_that_does_not_lead_and_an_ended_job_measure_nothing() -> None:
    service = FakeService(Autoscale.ON)
    autoscaler = reported(service, 1)
    service.leads = False
    autoscaler.note_pump([])
    assert service.scheduler.paces == {}
    service.leads = True
    autoscaler = reported(service, 1)
    assert service.known is not None
    service.known = replace(service.known, state=JobState.FINISHED)
    autoscaler.note_pump([("demo", ())])
    assert service.scheduler.paces == {}
    service.known = replace(service.known, state=JobState.RUNNING)
    autoscaler = reported(service, 1)
    service.known = None
    autoscaler.note_pump([("demo", ())])
    assert service.scheduler.paces == {}
