"""The machines that are lent to the pool, as their agents last reported them. The leader keeps them in memory only.

A new leader knows them again after the next report of each, within seconds. Until then it starts no agents beside those
of a machine that it does not know: agents that are registered with a job count, wherever they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pliant.core.allocate.machines import AgentRoom, LentMachine, LentSlot, Tenant, bad_machine, place
from pliant.core.job.assignment import desired_workers, workers_on
from pliant.core.messages import Code, Rejection
from pliant.core.model.job import Job

SILENT_S = 10.0  # a machine that reports nothing for so long is lent no more


@dataclass(frozen=True, slots=True)
class Refusal:
    """A job that a machine cannot run, with the script that it had, and since when."""

    why: str
    script: tuple[str, ...]
    since: float


class LentMachines:
    """The lent machines by name, with the time of their last reports."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[LentMachine, float]] = {}
        self._refusals: dict[str, dict[str, Refusal]] = {}  # by machine and job

    def report(self, machine: LentMachine, now: float) -> Rejection | None:
        """Note the report of a machine. One with the name of another that is lent is refused."""
        if wrong := bad_machine(machine):
            return Rejection(Code.BAD, wrong)
        before = next((each for each in self.lent(now) if each.name == machine.name), machine)
        if before.install_id != machine.install_id:
            why = f"another machine is lent under the name {machine.name}: set PLIANT_AGENT to another name here"
            return Rejection(Code.EXISTS, why)
        self._known[machine.name] = machine, now
        return None

    def note_refused(self, machine: LentMachine, find: Callable[[str], Job | None], now: float) -> None:
        """Note since when a machine refuses jobs with their present scripts. `find` returns a loaded job."""
        before, found = self._refusals.get(machine.name, {}), dict[str, Refusal]()
        for name, why in machine.refused:
            script = () if (job := find(name)) is None else job.spec.script
            known = before.get(name)
            since = known.since if known is not None and known.script == script else now
            found[name] = Refusal(why, script, since)
        self._refusals[machine.name] = found

    def refusal_of(self, job: Job, now: float, after_s: float) -> str:
        """Return why a job is refused by all machines for some time already; empty if it is not.

        A machine on which its agent failed may run it a moment later.
        """
        able = [each.name for each in self.lent(now) if not each.is_leaving]
        found = [self._refusals.get(name, {}).get(job.name) for name in able]
        lasting = [x.why for x in found if x is not None and x.script == job.spec.script and now - x.since >= after_s]
        return lasting[0] if found and len(lasting) == len(found) else ""

    def lent(self, now: float) -> tuple[LentMachine, ...]:
        """Return the machines that have reported lately, by name."""
        self._known = {name: each for name, each in self._known.items() if now - each[1] < SILENT_S}
        self._refusals = {name: each for name, each in self._refusals.items() if name in self._known}
        return tuple(machine for _, (machine, _) in sorted(self._known.items()))

    def slots(self, now: float) -> int:
        """Return the slots of all machines that take jobs. A machine that leaves lends those that are still in use."""
        return sum(
            sum(bool(slot.job) for slot in each.slots) if each.is_leaving else len(each.slots)
            for each in self.lent(now)
        )

    def orders(self, name: str, jobs: Iterable[Job], now: float) -> tuple[str, ...]:
        """Return the job of each slot of a machine that has just reported. `jobs` are those of the pool, by rank."""
        lent = self.lent(now)
        found = place(lent, [tenant_of(job) for job in jobs if job.spec.script and not job.state.ended])[name]
        machine, at = self._known[name]
        # Slots with new agents are taken before the next report, so that no other machine starts them too.
        slots = tuple(slot if slot.job else LentSlot(job) for slot, job in zip(machine.slots, found, strict=True))
        self._known[name] = replace(machine, slots=slots), at
        return found

    def forget(self) -> None:
        """Drop the memory of a leader that leads no more."""
        self._known, self._refusals = {}, {}


def tenant_of(job: Job) -> Tenant:
    """Return what a job needs of lent machines."""
    wanted = desired_workers(job)
    rooms = {
        agent.id: AgentRoom(
            0 if agent.draining else agent.capacity, max(wanted.get(agent.id, 0), len(workers_on(job, agent.id)[0]))
        )
        for agent in job.agents
    }
    return Tenant(job.name, job.granted, rooms)
