"""The machines that are lent to a leader's pool."""

from __future__ import annotations

from dataclasses import replace

from pliant.coordinator.service.machines import SILENT_S, LentMachines, tenant_of
from pliant.coordinator.service.scheduler import Scheduler
from pliant.core.allocate import Pool, Reason
from pliant.core.allocate.demands import SETTLE_S
from pliant.core.allocate.machines import AgentRoom, LentMachine, LentSlot
from pliant.core.messages import Code, GrantWorkers, Rejection
from pliant.core.model.job import Agent, Job, JobState
from pliant.core.model.names import AgentId
from unit.coordinator.service.test_scheduler import job, loaded, sizes
from unit.core.build import X


def scripted(found: Job) -> Job:
    return replace(found, spec=replace(found.spec, script=("train.py",)))


def free(name: str, slots: int, install_id: str = "") -> LentMachine:
    return LentMachine(name, (LentSlot(),) * slots, install_id)


def test_a_machine_is_lent_while_it_reports() -> None:
    machines = LentMachines()
    assert machines.report(free("a", 2), 0.0) is None
    assert machines.report(free("b", 1), 5.0) is None
    assert machines.slots(5.0) == 3
    assert [each.name for each in machines.lent(SILENT_S)] == ["b"]
    machines.forget()
    assert machines.slots(5.0) == 0


def test_a_machine_that_leaves_lends_what_it_still_uses() -> None:
    machines = LentMachines()
    machines.report(LentMachine("a", (LentSlot("x"), LentSlot()), is_leaving=True), 0.0)
    assert machines.slots(0.0) == 1


def test_bad_reports_and_names_that_are_taken_are_refused() -> None:
    machines = LentMachines()
    assert machines.report(free("a/b", 1), 0.0) == Rejection(
        Code.BAD,
        "the machine's name is not valid: a name has letters, digits, '-', '.' and '_', with a letter or digit at both "
        "ends; got 'a/b'",
    )
    machines.report(free("a", 1, "home"), 0.0)
    assert machines.report(free("a", 1, "home"), 1.0) is None
    refused = machines.report(free("a", 1, "other"), 2.0)
    assert isinstance(refused, Rejection)
    assert refused.code is Code.EXISTS
    assert machines.report(free("a", 1, "other"), 1.0 + SILENT_S) is None


def test_slots_that_were_ordered_count_before_the_next_report() -> None:
    machines, low = LentMachines(), scripted(job("low", 0, 1))
    machines.report(free("a", 1), 0.0)
    machines.report(free("b", 1), 0.0)
    assert machines.orders("a", [low], 0.0) == ("low",)
    assert machines.orders("b", [low], 0.0) == ("",)


def test_jobs_without_a_script_and_ended_ones_are_not_placed() -> None:
    machines, plain, over = LentMachines(), job("plain", 0, 1), scripted(job("over", 0, 1))
    machines.report(free("a", 2), 0.0)
    assert machines.orders("a", [plain, replace(over, state=JobState.FINISHED)], 0.0) == ("", "")


def test_agents_count_with_their_workers_and_not_once_they_leave() -> None:
    found = replace(job("a", 2, 2), agents=(Agent(X, 4), Agent(AgentId("gone"), 4, draining=True)))
    rooms = tenant_of(found).agents
    assert (rooms[X].capacity, rooms[AgentId("gone")]) == (4, AgentRoom(0, 0))
    assert rooms[X].needed == 2


def lent(slots: int) -> Scheduler:
    """A leader that found a pool of lent machines; one machine reports."""
    scheduler = Scheduler()
    scheduler.pool = Pool(0, is_lent=True)
    scheduler.machines.report(free("a", slots), 0.0)
    return scheduler


def test_the_pool_has_the_slots_of_lent_machines() -> None:
    scheduler = lent(2)
    waiting = scripted(job("a", 0, 0))
    scheduler.due(0.0, 0.0, loaded(waiting))
    scheduler.machines.report(free("a", 2), SETTLE_S)
    [(_, command)] = scheduler.due(SETTLE_S, 0.0, loaded(waiting))
    assert isinstance(command, GrantWorkers)
    assert command.size == 2
    assert scheduler.shown_pool == Pool(2, is_lent=True)
    granted = replace(waiting, granted=2)
    found = scheduler.report_machine(free("a", 2), {"a": granted}.get, SETTLE_S)
    assert found == (granted, granted)
    assert isinstance(scheduler.report_machine(free("a", 2, "other"), {"a": granted}.get, SETTLE_S), Rejection)
    scheduler.forget()
    assert scheduler.machines.lent(SETTLE_S) == ()


def test_a_new_leader_takes_no_slots_away_before_all_machines_can_have_reported() -> None:
    scheduler = lent(1)
    running = job("a", 3, 3)
    assert sizes(scheduler.due(0.0, 0.0, loaded(running))).get("a", 3) == 3
    assert scheduler.shown_pool == Pool(3, is_lent=True)
    scheduler.machines.report(free("a", 1), SETTLE_S)
    assert sizes(scheduler.due(SETTLE_S, 0.0, loaded(running))) == {"a": 1}


def test_a_job_that_all_machines_refuse_for_a_while_waits_until_its_script_changes() -> None:
    typo = scripted(job("typo", 0, 2))
    scheduler = Scheduler()
    scheduler.pool = Pool(0, is_lent=True)

    def report(now: float, *names: str, refused: tuple[tuple[str, str], ...] = (("typo", "no script"),)) -> None:
        for name in names:
            scheduler.report_machine(replace(free(name, 2), refused=refused), lambda _: typo, now)

    def wait(now: float) -> str:
        scheduler.due(now, now, loaded(typo))
        (shown,) = scheduler.shown
        return shown[1].why if shown[1].reason is Reason.REFUSED else ""

    report(0.0, "a")
    assert not wait(0.0), "its agent may have failed for a moment"
    for part in (1, 2, 3, 4):
        report(part * SETTLE_S / 4, "a")
    assert wait(SETTLE_S) == "no machine can run it: no script"
    report(SETTLE_S + 1, "b", refused=())
    assert not wait(SETTLE_S + 1), "another machine may run it"
    typo = replace(typo, spec=replace(typo.spec, script=("right.py",)))
    report(SETTLE_S + 2, "a", "b")
    assert not wait(SETTLE_S + 2), "it has another script"
