"""Turn the options of `pliant run`, torchrun's and Pliant's own, into a plan for the agent.

`build_plan` is pure. `probe_machine` collects the facts about the machine that it needs.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pliant import settings
from pliant.agent.process.cgroups import usable_cpus
from pliant.cli.connect import Flags
from pliant.cli.run.endpoint import (
    EndpointFacts,
    configured_tls,
    etcd_endpoint,
    metrics_address,
    own_tls,
    probe_endpoint,
    resolve_endpoint,
)
from pliant.cli.run.etcd import EtcdUrl, apply_etcd, store_of
from pliant.cli.run.option_types import SIGNALS, EndpointAddress, RdzvConf, checkpoint_place
from pliant.core.model.names import NAME_MAX, bad_name
from pliant.core.policy.schedule import Schedule, bad_schedule
from pliant.errors import BadInput

if TYPE_CHECKING:
    import signal

    from pliant.agent.last_command import CommandLine
    from pliant.agent.logs.capture import LogOptions, StreamMask
    from pliant.agent.plan import RunPlan
    from pliant.agent.process.script import Script
    from pliant.agent.process.worker_env import Framework
    from pliant.core.model.job import JobSpec, Mode
    from pliant.credentials import CoordinatorAddress

SHUTDOWN_S = 30.0
NOTICE_SHUTDOWN_S = 5.0  # TensorFlow and JAX take SIGTERM as a preemption notice and do not end
VARIABLE_PREFIXES = (
    "PET_",
    "PYTHON_EXEC",
    "CUDA_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
)
ROLES = ("chief", "worker", "ps", "evaluator")
TF_SCRIPT = "exec.py"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The parsed command line. Options that were not given are None or empty."""

    script: str | None = None
    args: tuple[str, ...] = ()
    job: str | None = None
    workers: tuple[int, int] | None = None
    target: int | None = None
    schedule: Schedule = ()
    autoscale: str = "off"
    spares: int = 0
    ps: int = 0
    queue: str | None = None
    priority: int = 0
    at_most_cost: float = 0.0  # 0: no limit
    deadline: float = 0.0  # 0: none
    chaos: bool = False
    mode: str = "auto"
    kind: Framework = "torch"
    grace_s: float = settings.GRACE_S
    wait_limit_s: float | None = None
    preload: tuple[str, ...] | None = None
    notices: tuple[str, ...] = ()
    fresh: bool = False
    metrics_port: int | None = None
    override: bool = False
    checkpoint_dir: str | None = None
    checkpoint_every: tuple[int, float] = (0, 0.0)  # steps, seconds
    checkpoint_keep: int = 2
    nnodes: tuple[int, int] | None = None
    nproc_per_node: str | None = None
    rdzv_kind: str | None = None
    rdzv_endpoint: EndpointAddress | EtcdUrl | None = None
    rdzv_id: str | None = None
    rdzv_conf: RdzvConf | None = None
    standalone: bool = False
    max_restarts: int = 3
    monitor_interval: float | None = None
    start_method: str | None = None
    event_log_handler: str | None = None
    role: str = "default"
    module: bool = False
    no_python: bool = False
    run_path: bool = False
    log_dir: Path | None = None
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: frozenset[int] | None = None
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    node_rank: int | None = None
    static_host: str | None = None
    static_port: int | None = None
    local_addr: str | None = None
    logs_specs: str | None = None
    numa_binding: str | None = None
    signals: tuple[signal.Signals, ...] = SIGNALS
    shutdown_timeout: float | None = None
    virtual_local_rank: bool = False
    given: Mapping[str, str] = field(default_factory=dict)  # the options that were passed, as text


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Facts about this machine. `probe_endpoint` is called only if the options name an endpoint."""

    settings: settings.Settings
    variables: Mapping[str, str]
    cpus: int
    gpus: int
    probe_endpoint: Callable[[EndpointAddress], EndpointFacts]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The plan, the coordinator to join (None to host one), and notes to print at the start."""

    plan: RunPlan
    elsewhere: CoordinatorAddress | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobSizes:
    """Smallest and largest number of workers, the capacity of this machine, and the number of machines."""

    low: int
    high: int
    capacity: int
    machines: int


def build_plan(options: RunOptions, machine: MachineFacts, flags: Flags) -> PlannedRun:
    """Return the plan. Raise BadInput or click.UsageError for options that cannot be used."""
    from pliant.agent.plan import RunPlan

    options, etcd = apply_etcd(options)
    notes = ignored_flags(options)
    name, name_is_derived = job_name(options, machine, notes)
    script = worker_script(options, machine)
    roles = parse_roles(options)
    sizes = job_sizes(options, machine, roles, notes)
    if etcd is None:
        listen, elsewhere = resolve_endpoint(options, machine, flags, name, sizes.machines, notes)
    else:
        listen, elsewhere = etcd_endpoint(etcd, options, configured_tls(machine, flags), flags, notes), None
    _note_capacity(options, sizes, listen is None and elsewhere is None, notes)
    tls, listen = own_tls(listen, configured_tls(machine, flags)), metrics_address(options, listen, elsewhere)
    plan = RunPlan(
        job=name,
        spec=_settings(options, sizes, roles),
        script=script,
        capacity=sizes.capacity,
        servers=options.ps,
        devices=visible_device_count(machine.variables.get("CUDA_VISIBLE_DEVICES"), machine.gpus),
        checkpoint_dir=checkpoint_place(name, options.checkpoint_dir),
        kind=options.kind,
        role="default" if roles else options.role,
        grace_s=options.grace_s,
        shutdown_s=_shutdown_s(options, machine),
        preload=options.preload,
        local_addr=options.local_addr,
        fresh=options.fresh,
        override=options.override,
        logs=log_options(options, name),
        virtual_local_rank=options.virtual_local_rank,
        signals=options.signals,
        notices=options.notices,
        command=command_line(options),
        name_is_derived=name_is_derived,
        listen=listen,
        tls=tls,
        metrics=options.metrics_port is not None,
        store=None if etcd is None else store_of(etcd, name),
    )
    return PlannedRun(plan, elsewhere, tuple(notes))


def _settings(options: RunOptions, sizes: JobSizes, roles: Mapping[str, int]) -> JobSpec:
    """Return the settings of the job."""
    from pliant.core.model.checkpoint import CheckpointPolicy
    from pliant.core.model.job import Autoscale, JobSpec, Target

    return JobSpec(
        size_min=sizes.low,
        size_max=sizes.high,
        target=None if options.target is None else Target(options.target),
        wait_limit_s=options.wait_limit_s or (options.rdzv_conf or RdzvConf()).wait_limit_s,
        max_restarts=options.max_restarts,
        mode=job_mode(options),
        spares=options.spares,
        roles=tuple((role, count) for role, count in roles.items() if role != "worker"),
        checkpoints=CheckpointPolicy(*options.checkpoint_every, keep=options.checkpoint_keep),
        chaos_allowed=options.chaos,
        queue=options.queue or "",
        priority=options.priority,
        at_most_cost=options.at_most_cost or None,
        deadline=options.deadline or None,
        schedule=options.schedule,
        autoscale=Autoscale(options.autoscale),
    )


def job_mode(options: RunOptions) -> Mode:
    """Return the mode. With parameter servers it is a task queue, unless `--mode live` is given."""
    from pliant.core.model.job import Mode

    if options.ps and options.mode == "relaunch":
        raise BadInput(f"--ps {options.ps} needs a task queue, the default, or --mode live; got --mode relaunch.")
    if options.ps and options.queue:
        raise BadInput("--ps and --queue cannot be combined: a pool grants slots to workers, not to parameter servers.")
    if options.ps and options.mode == "live" and options.checkpoint_every[0]:
        steps = options.checkpoint_every[0]
        raise BadInput(f"--checkpoint-every {steps}: parameter servers save by time. Pass 60s, for example.")
    return Mode.TASKS if options.ps and options.mode == "auto" else Mode(options.mode)


def ignored_flags(options: RunOptions) -> list[str]:
    """Return a note that lists the options without effect, if there are any."""
    given_flags = (
        (options.monitor_interval is not None, "--monitor-interval"),
        (options.start_method is not None, "--start-method"),
        (options.event_log_handler not in (None, "null"), "--event-log-handler"),
        (options.logs_specs is not None, "--logs-specs"),
        (options.numa_binding is not None, "--numa-binding"),
        (options.run_path, "--run-path"),
    )
    keys = options.rdzv_conf.ignored if options.rdzv_conf is not None else ()
    found = [flag for is_given, flag in given_flags if is_given] + [f"--rdzv-conf {key}" for key in keys]
    return [f"ignored, for torchrun only: {', '.join(found)}"] if found else []


def log_options(options: RunOptions, job: str) -> LogOptions:
    """Return the log options. Each job has its own folder, since members of two jobs may share names."""
    from pliant.agent.logs.capture import LogOptions

    place = options.log_dir
    return LogOptions(
        log_dir=place if place in (None, Path(os.devnull)) else place / job,
        redirects=_mask("--redirects", options.redirects),
        tee=_mask("--tee", options.tee),
        shown=options.local_ranks_filter,
        stdout_filters=options.duplicate_stdout_filters,
        stderr_filters=options.duplicate_stderr_filters,
    )


def _mask(flag: str, text: str) -> StreamMask:
    from pliant.agent.logs.capture import StreamMask

    try:
        return StreamMask.parse(text)
    except BadInput as error:
        raise BadInput(f"{flag}: {error.why}") from error


# ---------------------------------------------------------------------------------------- script and name


def worker_script(options: RunOptions, machine: MachineFacts) -> Script:
    """Return the script or program that every worker runs."""
    from pliant.agent.process.script import Script

    name = options.script
    if name is None and options.kind == "tf" and not options.module:
        name = TF_SCRIPT
        if not Path(name).is_file():
            raise click.UsageError(f"No script given, and there is no {TF_SCRIPT} in this folder.")
    if name is None:
        raise click.UsageError("No script given. Usage: pliant run [OPTIONS] train.py [ARGS].")
    if options.no_python and not options.run_path:
        if options.module:
            raise click.UsageError("--module and --no-python cannot be combined.")
        if shutil.which(name) is None:
            raise click.UsageError(f"There is no program {name!r}. Put options of pliant run before it.")
        return Script("program", name, options.args)
    folder = not options.module and (Path(name) / "__main__.py").is_file()
    if not (options.module or folder or Path(name).is_file()):
        raise click.UsageError(f"There is no script {name!r}. Put options of pliant run before it.")
    if not (options.module or folder):
        _check_syntax(Path(name))
    python = machine.variables.get("PYTHON_EXEC")  # torchrun's variable for another interpreter
    if python and shutil.which(python) is None:
        raise BadInput(f"PYTHON_EXEC is {python!r}, but there is no such program.")
    if python:
        return Script("program", python, ("-u", *(("-m",) if options.module else ()), name, *options.args))
    return Script("module" if options.module else "file", name, options.args)


def _check_syntax(path: Path) -> None:
    """Refuse a script with a syntax error before the first attempt."""
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise BadInput(f"{path}, line {error.lineno}: {error.msg}.") from error
    except (OSError, ValueError):
        return  # Python reports it better


def command_line(options: RunOptions) -> CommandLine:
    """Return the command line, to compare it with that of the next start."""
    from pliant.agent.last_command import CommandLine

    name = options.script or TF_SCRIPT
    found = name if Path(name).exists() else shutil.which(name) or name
    return CommandLine(f"-m {name}" if options.module else str(Path(found).resolve()), options.args, options.given)


def job_name(options: RunOptions, machine: MachineFacts, notes: list[str]) -> tuple[str, bool]:
    """Return the job's name, and whether it is derived from the script because the user gave none."""
    rdzv_id = None if options.rdzv_id in (None, "", "none") else options.rdzv_id
    if options.job is not None and rdzv_id not in (None, options.job):
        notes.append(f"--rdzv-id {rdzv_id} is ignored: --job names the job")
    for flag, name in (("--job", options.job), ("--rdzv-id", rdzv_id), ("PLIANT_JOB", machine.settings.job)):
        if name is not None:
            if wrong := bad_name(name):
                raise BadInput(f"Invalid job name from {flag}: {wrong}. Pass another name with --job.")
            return name, False
    script = options.script or TF_SCRIPT
    plain = script if options.module else Path(script).resolve().stem if Path(script).is_dir() else Path(script).stem
    derived = re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._")[:NAME_MAX].rstrip("-._") or "job"
    notes.append(f"the job is named {derived} after its script; pass --job for another name")
    return derived, True


# -------------------------------------------------------------------------------------------------- sizes


def parse_roles(options: RunOptions) -> dict[str, int]:
    """Parse `chief:1,ps:2` with --env tf; any other role is a plain name."""
    if options.kind != "tf" or ":" not in options.role:
        return {}
    roles: dict[str, int] = {}
    for part in options.role.split(","):
        role, _, count = part.strip().partition(":")
        if role not in ROLES or role in roles or not count.isdecimal() or (role == "chief" and int(count) != 1):
            raise BadInput(
                f"--role {options.role}: {part.strip()!r} is invalid. Pass a list such as chief:1,ps:2,evaluator:1. "
                f"Roles are {', '.join(ROLES)}, each at most once, with at most one chief. All others are workers."
            )
        if int(count):
            roles[role] = int(count)
    return roles


def swapped(low: int, high: int) -> str:
    """Return the suggestion for sizes in the wrong order; empty where they cannot be right either way."""
    return f" Did you mean {high}:{low}?" if 1 <= high < low else ""


def job_sizes(options: RunOptions, machine: MachineFacts, roles: Mapping[str, int], notes: list[str]) -> JobSizes:
    """Return the sizes in workers. --workers overrides --nnodes; --nproc-per-node is this machine's capacity."""
    few, many = options.nnodes or (1, 1)
    if not 1 <= few <= many:
        raise BadInput(f"--nnodes must be N or MIN:MAX with 1 <= MIN <= MAX, not {few}:{many}.{swapped(few, many)}")
    own = None if options.nproc_per_node is None else parse_nproc(options.nproc_per_node, machine, notes, options.ps)
    if options.workers is not None:
        low, high = options.workers
    elif roles and options.nnodes is None and own is None:
        low = high = sum(roles.values()) + (0 if "worker" in roles else 1)
    else:
        low, high = few * (own or 1), many * (own or 1)
    if not 1 <= low <= high:
        raise BadInput(f"--workers must be MIN:MAX with 1 <= MIN <= MAX, not {low}:{high}.{swapped(low, high)}")
    if options.target is not None and not low <= options.target <= high:
        raise BadInput(f"--target must be between {low} and {high}, not {options.target}.")
    if wrong := bad_schedule(options.schedule, low, high):
        raise BadInput(f"--schedule: {wrong}.")
    named = sum(count for role, count in roles.items() if role != "worker")
    if named >= high:
        raise BadInput(f"--role names {named} of at most {high} workers. At least one plain worker is required.")
    whole = options.workers is not None or (options.nnodes is None and bool(roles))
    capacity = own if own is not None else high + options.spares if whole else 1
    return JobSizes(low, high, capacity, many)


def parse_nproc(text: str, machine: MachineFacts, notes: list[str], servers: int = 0) -> int:
    """Parse --nproc-per-node: a number, or a kind of device to count, without importing a framework.

    It may be 0 on a machine that runs parameter servers.
    """
    if text.isascii() and text.isdecimal() and (int(text) > 0 or servers):
        return int(text)
    gpus = visible_device_count(machine.variables.get("CUDA_VISIBLE_DEVICES"), machine.gpus)
    xpus = visible_device_count(machine.variables.get("ZE_AFFINITY_MASK"), None)
    counted = {
        "cpu": (machine.cpus, "CPUs"),
        "gpu": (gpus, "GPUs"),
        "xpu": (xpus, "XPUs in ZE_AFFINITY_MASK"),
        "auto": (gpus, "GPUs") if gpus else (machine.cpus, "CPUs, no GPU,"),
    }
    if text not in counted:
        raise BadInput(f"--nproc-per-node must be a number from 1, auto, cpu, gpu or xpu, not {text!r}.")
    count, what = counted[text]
    if not count:
        raise BadInput(f"--nproc-per-node {text}: this machine has no {what}. Pass a number of workers instead.")
    notes.append(f"--nproc-per-node {text}: {count} ({count} {what} on this machine)")
    return count


def visible_device_count(listed: str | None, present: int | None) -> int:
    """Count the devices that a list such as CUDA_VISIBLE_DEVICES leaves visible, up to the first invalid one.

    `present` is the number of devices, None if unknown.
    """
    if listed is None:
        return present or 0
    if present == 0:
        return 0
    count = 0
    for device in listed.split(","):
        text = device.strip()
        if not text or text.startswith("-") or (text.isdecimal() and present is not None and int(text) >= present):
            break
        count += 1
    return count


def _note_capacity(options: RunOptions, sizes: JobSizes, alone: bool, notes: list[str]) -> None:
    """Add a note if this machine cannot run all workers and spares, or offers capacity for all of them."""
    wanted = options.target or sizes.high
    if alone and sizes.capacity < sizes.low:
        notes.append(
            f"the job needs {sizes.low} workers, but this machine can run {sizes.capacity}; waiting for other machines"
        )
    elif alone and options.spares and sizes.capacity < wanted + options.spares:
        notes.append(
            f"not every spare fits: {wanted} workers and {options.spares} spares, "
            f"but this machine can run {sizes.capacity}"
        )
    if not alone and options.workers is not None and options.nproc_per_node is None:
        notes.append(f"this machine offers all {sizes.capacity} worker slots; limit it with --nproc-per-node")


def _default_shutdown_s(options: RunOptions) -> float:
    return SHUTDOWN_S if options.kind == "torch" else NOTICE_SHUTDOWN_S


def _shutdown_s(options: RunOptions, machine: MachineFacts) -> float:
    if options.shutdown_timeout is not None:
        return options.shutdown_timeout
    text = machine.variables.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT") or f"{_default_shutdown_s(options):g}"
    if not text.isdecimal():
        raise BadInput(f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT must be a number of seconds, not {text!r}.")
    return float(text)


def probe_machine() -> MachineFacts:
    """Collect the facts about this machine and its environment."""
    cpus, gpus = usable_cpus(), len(list(Path("/dev").glob("nvidia[0-9]*")))
    return MachineFacts(settings.read(), settings.with_prefix(*VARIABLE_PREFIXES), cpus, gpus, probe_endpoint)
