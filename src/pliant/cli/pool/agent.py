"""`pliant agent --pool`: lend this machine to the jobs of a pool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pliant import settings
from pliant.cli.connect import PROGRAM, Flags, connection_options
from pliant.cli.output import json_option
from pliant.errors import BadInput, PliantError

if TYPE_CHECKING:
    from pliant.cli.run.plan import MachineFacts


def devices_of(machine: MachineFacts) -> tuple[str, ...]:
    """Return the GPUs of a machine as CUDA names them: those that CUDA_VISIBLE_DEVICES lists, or all."""
    from pliant.cli.run.plan import visible_device_count

    listed = machine.variables.get("CUDA_VISIBLE_DEVICES")
    names = [str(number) for number in range(machine.gpus)] if listed is None else listed.split(",")
    return tuple(name.strip() for name in names[: visible_device_count(listed, machine.gpus)])


def slots_and_devices(machine: MachineFacts, slots: int | None) -> tuple[int, tuple[str, ...]]:
    """Return the number of slots and the GPU of each: one for each GPU, or for each CPU of a machine without GPUs."""
    devices = devices_of(machine)
    count = slots or len(devices) or machine.cpus
    if devices and count > len(devices):
        raise BadInput(
            f"--slots is {count}, but {len(devices)} GPUs are visible, and each slot has one. For slots without a GPU "
            'set CUDA_VISIBLE_DEVICES="".'
        )
    return count, devices[:count]


@click.command()
@click.option("--pool", "is_pool", is_flag=True, help="Lend this machine to the jobs of the coordinator's pool.")
@click.option(
    "--scripts",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=".",
    show_default=True,
    help="Folder of the scripts that jobs may run here. They run in it.",
)
@click.option(
    "--slots",
    metavar="N",
    type=click.IntRange(1),
    help="Workers that this machine runs at a time.  [default: its GPUs, or its CPUs if it has none]",
)
@click.option(
    "--checkpoint-dir",
    metavar="DIR|URL",
    envvar="PLIANT_CHECKPOINT_DIR",
    help="Where jobs store checkpoints, each in a folder of its own. All machines must reach it.",
)
@click.option(
    "--grace-s",
    metavar="S",
    type=click.FloatRange(0),
    default=settings.GRACE_S,
    show_default=True,
    help="Seconds that workers have to leave.",
)
@click.option("--local-addr", metavar="HOST", help="Address at which other machines reach this one.")
@json_option
@connection_options
def agent(
    is_pool: bool,
    scripts: Path,
    slots: int | None,
    checkpoint_dir: str | None,
    grace_s: float,
    local_addr: str | None,
    flags: Flags,
    as_json: bool,
) -> int:
    """Lend this machine to many jobs of one coordinator.

    Jobs that were created with `pliant jobs create --queue NAME ... -- SCRIPT` get slots of this machine as the pool
    grants them. Only scripts below --scripts are run. Ctrl-C lets all workers leave; a second one ends them.
    """
    from pliant.agent.pool_agent import LendingPlan, PoolAgent
    from pliant.cli.run.option_types import checkpoint_place
    from pliant.cli.run.output import JsonOutput, PlainOutput
    from pliant.cli.run.plan import probe_machine

    if not is_pool:
        raise click.UsageError("Pass --pool to lend this machine to a pool. For one job, use `pliant run`.")
    machine = probe_machine()
    if checkpoint_dir is not None:
        checkpoint_dir = str(checkpoint_place("", checkpoint_dir))
    count, devices = slots_and_devices(machine, slots)
    plan = LendingPlan(count, scripts.absolute(), devices, checkpoint_dir, grace_s, local_addr)
    output = JsonOutput() if as_json else PlainOutput()
    try:
        return PoolAgent(plan, machine.settings.home, output, PROGRAM, flags.resolve()).run()
    except PliantError as error:
        output.fail(error.why)
        return error.exit_code
    finally:
        output.close()
