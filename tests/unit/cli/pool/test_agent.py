"""`pliant agent --pool` before it starts anything, and `pliant queue` with lent machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.cli.pool.agent import devices_of, slots_and_devices
from pliant.cli.run.plan import MachineFacts, probe_machine
from pliant.core.allocate.machines import LentMachine, LentSlot
from pliant.errors import BadInput
from unit.cli.program import Done, Running


def facts(cpus: int, gpus: int, listed: str | None = None) -> MachineFacts:
    variables = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    return replace(probe_machine(), cpus=cpus, gpus=gpus, variables=variables)


@pytest.mark.parametrize(
    ("machine", "devices"),
    [
        (facts(8, 2), ("0", "1")),
        (facts(8, 4, "3, 1"), ("3", "1")),
        (facts(8, 4, "GPU-abc"), ("GPU-abc",)),
        (facts(8, 4, "1,-1,2"), ("1",)),
        (facts(8, 4, ""), ()),
        (facts(8, 0), ()),
    ],
)
def test_the_gpus_that_are_visible_are_lent(machine: MachineFacts, devices: tuple[str, ...]) -> None:
    assert devices_of(machine) == devices


def test_slots_are_gpus_or_cpus() -> None:
    assert slots_and_devices(facts(8, 2), None) == (2, ("0", "1"))
    assert slots_and_devices(facts(8, 2), 1) == (1, ("0",))
    assert slots_and_devices(facts(8, 0), None) == (8, ())
    assert slots_and_devices(facts(8, 0), 20) == (20, ())
    with pytest.raises(BadInput, match=r"--slots is 3, but 2 GPUs are visible"):
        slots_and_devices(facts(8, 2), 3)


def test_without_pool_the_command_says_what_to_use(pliant: Callable[..., Done]) -> None:
    done = pliant("agent")
    assert done.code == 2
    assert "For one job, use `pliant run`." in done.err


def test_the_queue_shows_machines_with_their_jobs_and_what_they_refuse(
    pliant: Callable[..., Done], running: Running, tmp_path: Path
) -> None:
    assert pliant("queue", "set", "--slots", "auto").code == 0
    assert "neither a number nor auto" in pliant("queue", "set", "--slots", "many").err
    created = pliant("jobs", "create", "job", "--queue", "q", "--workers", "1:2", "--", "train.py", "--lr", "1")
    assert created.code == 0
    assert pliant("status", "job", "--json").json["spec"]["script"] == ["train.py", "--lr", "1"]
    with running.client() as client:
        refused = (("job", "there is no script train.py"),)
        client.report_machine(LentMachine("m1", (LentSlot("other"), LentSlot()), refused=refused))
        client.report_machine(LentMachine("m2", (LentSlot(),), is_leaving=True))
    shown = pliant("queue").out
    assert "slots of lent machines" in shown
    assert "machine m1  1 of 2 slots in use by other\n  job cannot run there: there is no script train.py\n" in shown
    assert "machine m2  0 of 1 slot in use; it leaves" in shown
    assert [each["name"] for each in pliant("queue", "--json").json["machines"]] == ["m1", "m2"]
