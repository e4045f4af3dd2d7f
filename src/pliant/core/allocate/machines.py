"""Lent machines: the job whose agent runs in each slot of each of them. `place` decides it for all machines at once.

A slot of a lent machine has room for one agent, with one worker. An agent leaves its slot before the next one starts,
so a device never has two workers. Grants decide how many slots a job gets, `place` only where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pliant.core.model.names import NAME_MAX, AgentId, bad_name

MACHINE_SLOTS_MAX = 1024
MACHINE_NAME_MAX = NAME_MAX - 5  # the agents of its slots are named after it
REFUSED_MAX = 100
WHY_MAX = 500


@dataclass(frozen=True, slots=True)
class LentSlot:
    """One slot of a lent machine: the job whose agent runs in it; empty: none. `is_stopping`: that agent leaves."""

    job: str = ""
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class LentMachine:
    """A machine as its agent reports it. `refused` are the jobs that it cannot run now, each with the reason.

    `install_id` tells it from another machine of the same name. A machine that is leaving takes no more jobs.
    """

    name: str
    slots: tuple[LentSlot, ...]
    install_id: str = ""
    refused: tuple[tuple[str, str], ...] = ()
    is_leaving: bool = False


@dataclass(frozen=True, slots=True)
class AgentRoom:
    """The room of a registered agent for workers, and the workers that run there or should."""

    capacity: int
    needed: int


@dataclass(frozen=True, slots=True)
class Tenant:
    """A job that lent machines run: the workers that it may have, and its registered agents."""

    name: str
    size: int
    agents: Mapping[AgentId, AgentRoom] = field(default_factory=dict)


def bad_machine(machine: LentMachine) -> str:
    """Return what is wrong with the report of a machine, or the empty string."""
    if wrong := bad_name(machine.name, MACHINE_NAME_MAX):
        return f"the machine's name is not valid: {wrong}"
    if len(machine.slots) > MACHINE_SLOTS_MAX:
        return f"a machine has at most {MACHINE_SLOTS_MAX} slots; got {len(machine.slots)}"
    if len(machine.install_id) > NAME_MAX or not machine.install_id.isprintable():
        return f"install_id must have up to {NAME_MAX} printable characters"
    if len(machine.refused) > REFUSED_MAX or any(len(why) > WHY_MAX for _, why in machine.refused):
        return f"a machine refuses up to {REFUSED_MAX} jobs, with reasons of up to {WHY_MAX} characters"
    names = [*(slot.job for slot in machine.slots if slot.job), *(job for job, _ in machine.refused)]
    return next((f"the name of a job is not valid: {bad}" for name in names if (bad := bad_name(name))), "")


def slot_agent(machine: str, slot: int) -> AgentId:
    """Return the name of the agent that runs in a slot; slots are counted from 0."""
    return AgentId(f"{machine}-{slot}")


def place(machines: Sequence[LentMachine], tenants: Iterable[Tenant]) -> dict[str, tuple[str, ...]]:
    """Return the job of each slot of each machine, by the machine's name; empty: no agent should run there.

    A job with too few slots gets free ones, in the order of `tenants`. A job with too many gives up those in which no
    worker runs: which workers leave is decided by its grant alone. Jobs that are not in `tenants` stay where they are,
    because their agents end by themselves.
    """
    orders = {each.name: ["" if slot.is_stopping else slot.job for slot in each.slots] for each in machines}
    missing = [(tenant, _release(machines, tenant, orders)) for tenant in tenants]
    for tenant, count in missing:
        for _ in range(count):
            found = _best_machine(machines, tenant, orders)
            if found is None:
                break
            orders[found.name][_free(found, orders)[0]] = tenant.name
    return {name: tuple(jobs) for name, jobs in orders.items()}


def _release(machines: Sequence[LentMachine], tenant: Tenant, orders: dict[str, list[str]]) -> int:
    """Take slots from a job that has too many. Return how many it lacks."""
    own = [
        (machine, at)
        for machine in machines
        for at, slot in enumerate(machine.slots)
        if slot.job == tenant.name and not slot.is_stopping
    ]
    here = {slot_agent(machine.name, at) for machine, at in own}
    elsewhere = sum(room.capacity for agent, room in tenant.agents.items() if agent not in here)
    missing = tenant.size - elsewhere - len(own)
    for machine, at in reversed(own):
        room = tenant.agents.get(slot_agent(machine.name, at))
        if machine.is_leaving or (missing < 0 and (room is None or not room.needed)):
            orders[machine.name][at] = ""
            missing += 1
    return missing


def _free(machine: LentMachine, orders: dict[str, list[str]]) -> list[int]:
    """Return the slots in which an agent can be started."""
    if machine.is_leaving:
        return []
    return [at for at, slot in enumerate(machine.slots) if not slot.job and not orders[machine.name][at]]


def _best_machine(machines: Sequence[LentMachine], tenant: Tenant, orders: dict[str, list[str]]) -> LentMachine | None:
    """Return the machine for one more agent of a job: near its other ones, else where most slots are free."""
    able = [
        machine
        for machine in machines
        if _free(machine, orders) and tenant.name not in (job for job, _ in machine.refused)
    ]
    return min(
        able,
        key=lambda each: (-orders[each.name].count(tenant.name), -len(_free(each, orders)), each.name),
        default=None,
    )
