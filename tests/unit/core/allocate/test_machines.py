"""Lent machines: where the agents of jobs run, and which of them leave."""

from __future__ import annotations

import pytest

from pliant.core.allocate.machines import (
    MACHINE_SLOTS_MAX,
    REFUSED_MAX,
    AgentRoom,
    LentMachine,
    LentSlot,
    Tenant,
    bad_machine,
    place,
    slot_agent,
)
from pliant.core.model.names import AgentId


def machine(name: str, *jobs: str, refused: tuple[str, ...] = (), is_leaving: bool = False) -> LentMachine:
    """A machine with a slot for each word: a job, `-` for a free slot, and `job!` if that agent leaves."""
    slots = tuple(LentSlot("" if job == "-" else job.rstrip("!"), job.endswith("!")) for job in jobs)
    return LentMachine(name, slots, refused=tuple((job, "no script") for job in refused), is_leaving=is_leaving)


def tenant(name: str, size: int, **needed: int) -> Tenant:
    """A job with registered agents; `m_0=1`: the agent of slot 0 of machine m has a worker."""
    agents = {AgentId(agent.replace("_", "-")): AgentRoom(1, count) for agent, count in needed.items()}
    return Tenant(name, size, agents)


def test_a_job_gets_free_slots_where_most_are_free_and_then_near_its_other_ones() -> None:
    machines = [machine("a", "-", "x"), machine("b", "-", "-", "-")]
    assert place(machines, [tenant("job", 2)]) == {"a": ("", "x"), "b": ("job", "job", "")}
    assert place(machines, [tenant("job", 4)]) == {"a": ("job", "x"), "b": ("job", "job", "job")}
    assert place([machine("a", "job", "-"), machine("b", "-", "-", "-")], [tenant("job", 2)])["a"] == ("job", "job")


def test_the_first_job_goes_first_and_slots_that_lack_stay_missing() -> None:
    assert place([machine("a", "-", "-")], [tenant("high", 1), tenant("low", 3)]) == {"a": ("high", "low")}


def test_a_job_with_too_many_slots_gives_up_those_without_a_worker() -> None:
    machines = [machine("a", "job", "job", "job")]
    agents = {"a_0": 1, "a_1": 0, "a_2": 1}
    assert place(machines, [tenant("job", 1, **agents)]) == {"a": ("job", "", "job")}
    assert place(machines, [tenant("job", 3, **agents)]) == {"a": ("job", "job", "job")}
    assert place(machines, [tenant("job", 2)]) == {"a": ("job", "job", "")}  # none of them is registered yet


def test_a_slot_is_not_free_before_its_agent_has_ended() -> None:
    machines = [machine("a", "low!", "low")]
    found = place(machines, [tenant("high", 2), tenant("low", 1, a_1=1)])
    assert found == {"a": ("", "low")}


def test_agents_that_run_elsewhere_count() -> None:
    assert place([machine("a", "-", "-")], [tenant("job", 2, mine=1)]) == {"a": ("job", "")}


def test_jobs_that_are_not_in_the_pool_any_more_end_by_themselves() -> None:
    assert place([machine("a", "ended", "-")], []) == {"a": ("ended", "")}


def test_a_machine_that_leaves_or_refuses_a_job_gets_none() -> None:
    assert place([machine("a", "job", "-", is_leaving=True), machine("b", "-")], [tenant("job", 1, a_0=1)]) == {
        "a": ("", ""),
        "b": ("job",),
    }
    assert place([machine("a", "-", refused=("job",))], [tenant("job", 1)]) == {"a": ("",)}


def test_what_was_ordered_is_kept() -> None:
    machines = [machine("a", "-", "-"), machine("b", "-", "-")]
    tenants = [tenant("high", 2), tenant("low", 2)]
    first = place(machines, tenants)
    again = [machine(name, *(job or "-" for job in jobs)) for name, jobs in first.items()]
    assert place(again, tenants) == first


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (machine("a b"), "the machine's name is not valid: a name has letters"),
        (machine("m" * 60), "the machine's name is not valid: a name has 1 to 58 characters"),
        (LentMachine("a", (LentSlot(),) * (MACHINE_SLOTS_MAX + 1)), "a machine has at most 1024 slots; got 1025"),
        (LentMachine("a", (), "x\n"), "install_id must have up to 63 printable characters"),
        (machine("a", refused=("job",) * (REFUSED_MAX + 1)), "a machine refuses up to 100 jobs"),
        (machine("a", "a/b"), "the name of a job is not valid: a name has letters"),
    ],
)
def test_a_report_that_cannot_be_used_is_refused(wrong: LentMachine, why: str) -> None:
    assert bad_machine(wrong).startswith(why)


def test_a_good_report_is_accepted_and_agents_are_named_after_their_slots() -> None:
    assert bad_machine(machine("a", "job", "-", refused=("other",))) == ""
    assert slot_agent("a", 1) == "a-1"
