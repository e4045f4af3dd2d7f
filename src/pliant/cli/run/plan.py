"""What a command line of `pliant run` means: torchrun's flags and ours become a plan for the agent.

`understand` is pure. What it needs to know of the machine is an `Around`, which `look_around` makes. Whatever is taken
for torchrun's sake and does nothing here is among the `notes` that it returns, one sentence for each.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pliant import settings
from pliant.cli.connect import Flags
from pliant.cli.run.endpoint import Seen, look, the_place
from pliant.cli.run.option_types import SIGNALS, Conf, Endpoint, place_of
from pliant.core.model.names import NAME_MAX, bad_name
from pliant.errors import BadInput

if TYPE_CHECKING:
    import signal

    from pliant.agent.logs.capture import Logs, Mask
    from pliant.agent.process.script import Script
    from pliant.agent.process.worker_env import Kind
    from pliant.agent.setup import Elsewhere, Plan

SHUTDOWN_S = 30.0
DEAF_SHUTDOWN_S = 5.0  # TensorFlow and JAX take SIGTERM for a notice, and do not end by it
VARIABLES = ("PET_", "PYTHON_EXEC", "CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
ROLES = ("chief", "worker", "ps", "evaluator")
TF_SCRIPT = "exec.py"


@dataclass(frozen=True, slots=True)
class Given:
    """The command line, each value as its option's type made it; None and empty where nothing was said."""

    script: str | None = None
    args: tuple[str, ...] = ()
    job: str | None = None
    workers: tuple[int, int] | None = None
    target: int | None = None
    spares: int = 0
    chaos: bool = False
    mode: str = "auto"
    kind: Kind = "torch"
    grace_s: float = settings.GRACE_S
    wait_limit_s: float | None = None
    preload: tuple[str, ...] | None = None
    notices: tuple[str, ...] = ()
    fresh: bool = False
    checkpoint_dir: str | None = None
    checkpoint_every: tuple[int, float] = (0, 0.0)  # steps, seconds
    checkpoint_keep: int = 2
    nnodes: tuple[int, int] | None = None
    nproc_per_node: str | None = None
    rdzv_kind: str | None = None
    rdzv_endpoint: Endpoint | None = None
    rdzv_id: str | None = None
    rdzv_conf: Conf | None = None
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


@dataclass(frozen=True, slots=True)
class Around:
    """What must be known of the machine. `look` is asked about an endpoint only when there is one."""

    said: settings.Settings
    variables: Mapping[str, str]
    cpus: int
    gpus: int
    look: Callable[[Endpoint], Seen]


@dataclass(frozen=True, slots=True)
class Understood:
    """The plan; where the coordinator is, if it is not to be our own; and what people should be told at the start."""

    plan: Plan
    elsewhere: Elsewhere | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How few and how many workers the job has, how many of them this machine, and how many machines there may be."""

    low: int
    high: int
    capacity: int
    machines: int


def understand(given: Given, around: Around, flags: Flags) -> Understood:
    """Call with everything that was said. BadInput or click's UsageError if it cannot be used, with what to do."""
    from pliant.agent.setup import Plan
    from pliant.core.model.checkpoint import CheckpointPolicy
    from pliant.core.model.job import JobSpec, Mode, Target

    notes = unheeded(given)
    name = the_name(given, around, notes)
    script = the_script(given, around)
    roles = the_roles(given)
    sizes = the_sizes(given, around, roles, notes)
    listen, elsewhere = the_place(given, around, flags, name, sizes.machines, notes)
    _room(given, sizes, listen is None and elsewhere is None, notes)
    conf = given.rdzv_conf or Conf()
    plan = Plan(
        job=name,
        spec=JobSpec(
            size_min=sizes.low,
            size_max=sizes.high,
            target=None if given.target is None else Target(given.target),
            wait_limit_s=given.wait_limit_s or conf.wait_limit_s,
            max_restarts=given.max_restarts,
            mode=Mode(given.mode),
            spares=given.spares,
            roles=tuple((role, count) for role, count in roles.items() if role != "worker"),
            checkpoints=CheckpointPolicy(*given.checkpoint_every, keep=given.checkpoint_keep),
            chaos_allowed=given.chaos,
        ),
        script=script,
        capacity=sizes.capacity,
        devices=visible(around.variables.get("CUDA_VISIBLE_DEVICES"), around.gpus),
        checkpoint_dir=place_of(name, given.checkpoint_dir),
        kind=given.kind,
        role="default" if roles else given.role,
        grace_s=given.grace_s,
        shutdown_s=_shutdown_s(given, around),
        preload=given.preload,
        local_addr=given.local_addr,
        fresh=given.fresh,
        logs=the_logs(given, name),
        virtual_local_rank=given.virtual_local_rank,
        signals=given.signals,
        notices=given.notices,
        listen=listen,
    )
    return Understood(plan, elsewhere, tuple(notes))


def unheeded(given: Given) -> list[str]:
    """A sentence for everything that is taken and does nothing."""
    handler, specs, binding = given.event_log_handler, given.logs_specs, given.numa_binding
    found = (
        (given.monitor_interval is not None, "--monitor-interval has no effect: a worker's end is seen at once"),
        (given.start_method is not None, "--start-method has no effect: a worker is always a process group of its own"),
        (
            handler not in (None, "null"),
            f"--event-log-handler {handler} is not called: `pliant events JOB --json` tells programs what happens",
        ),
        (
            specs is not None,
            f"--logs-specs {specs} is not loaded: --log-dir, --redirects and --tee say where output goes",
        ),
        (binding is not None, f"--numa-binding {binding}: nothing is bound; the system says which CPUs a worker has"),
        (given.run_path, "--run-path has no effect: the script has an interpreter of its own, as without it"),
    )
    ignored = given.rdzv_conf.ignored if given.rdzv_conf is not None else ()
    return [note for holds, note in found if holds] + [
        f"--rdzv-conf {key} has no effect: {why}" for key, why in ignored
    ]


def the_logs(given: Given, job: str) -> Logs:
    """Where workers' lines go. Members of two jobs may have the same names, so each job has a folder of its own."""
    from pliant.agent.logs.capture import Logs

    place = given.log_dir
    return Logs(
        log_dir=place if place in (None, Path(os.devnull)) else place / job,
        redirects=_mask("--redirects", given.redirects),
        tee=_mask("--tee", given.tee),
        shown=given.local_ranks_filter,
        stdout_filters=given.duplicate_stdout_filters,
        stderr_filters=given.duplicate_stderr_filters,
    )


def _mask(flag: str, text: str) -> Mask:
    from pliant.agent.logs.capture import Mask

    try:
        return Mask.parse(text)
    except BadInput as error:
        raise BadInput(f"{flag}: {error.why}") from error


# ---------------------------------------------------------------------------------------- script and name


def the_script(given: Given, around: Around) -> Script:
    """What every worker runs."""
    from pliant.agent.process.script import Script

    name = given.script
    if name is None and given.kind == "tf" and not given.module:
        name = TF_SCRIPT
        if not Path(name).is_file():
            raise click.UsageError(f"Which script? None is named, and there is no {TF_SCRIPT} in this folder.")
    if name is None:
        raise click.UsageError("Which script? It comes after the options: pliant run [OPTIONS] train.py [ARGS].")
    if given.no_python and not given.run_path:
        if given.module:
            raise click.UsageError("--module is for Python, and --no-python is without it: leave one of them away.")
        if shutil.which(name) is None:
            raise click.UsageError(f"There is no program {name!r}. Options of pliant run go before it.")
        return Script("program", name, given.args)
    folder = not given.module and (Path(name) / "__main__.py").is_file()
    if not (given.module or folder or Path(name).is_file()):
        raise click.UsageError(f"There is no script {name!r}. Options of pliant run go before it.")
    if not (given.module or folder):
        _check_syntax(Path(name))
    python = around.variables.get("PYTHON_EXEC")  # torchrun's word for another interpreter
    if python and shutil.which(python) is None:
        raise BadInput(f"PYTHON_EXEC is {python!r}, and there is no such program.")
    if python:
        return Script("program", python, ("-u", *(("-m",) if given.module else ()), name, *given.args))
    return Script("module" if given.module else "file", name, given.args)


def _check_syntax(path: Path) -> None:
    """What no attempt will mend is told before the first."""
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise BadInput(f"{path}, line {error.lineno}: {error.msg}.") from error
    except (OSError, ValueError):
        return  # Python itself says it better


def the_name(given: Given, around: Around, notes: list[str]) -> str:
    """The job's name: what was said, else what the environment says, else the script's."""
    rdzv_id = None if given.rdzv_id in (None, "", "none") else given.rdzv_id
    if given.job is not None and rdzv_id not in (None, given.job):
        notes.append(f"--rdzv-id {rdzv_id} has no effect: --job names the job")
    for flag, name in (("--job", given.job), ("--rdzv-id", rdzv_id), ("PLIANT_JOB", around.said.job)):
        if name is not None:
            if wrong := bad_name(name):
                raise BadInput(f"That is no job's name: {wrong}. It comes from {flag}; --job takes another.")
            return name
    script = given.script or TF_SCRIPT
    plain = script if given.module else Path(script).resolve().stem if Path(script).is_dir() else Path(script).stem
    derived = re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._")[:NAME_MAX].rstrip("-._") or "job"
    notes.append(f"the job is called {derived}, after its script; --job names it otherwise")
    return derived


# -------------------------------------------------------------------------------------------------- sizes


def the_roles(given: Given) -> dict[str, int]:
    """`chief:1,ps:2` with --env tf; any other role is a mere name."""
    if given.kind != "tf" or ":" not in given.role:
        return {}
    roles: dict[str, int] = {}
    for part in given.role.split(","):
        role, _, count = part.strip().partition(":")
        if role not in ROLES or role in roles or not count.isdecimal() or (role == "chief" and int(count) != 1):
            raise BadInput(
                f"--role {given.role}: {part.strip()!r} cannot be. Say for instance chief:1,ps:2,evaluator:1; roles "
                f"are {', '.join(ROLES)}, each named once, with one chief at most, and who has no other is a worker."
            )
        if int(count):
            roles[role] = int(count)
    return roles


def the_sizes(given: Given, around: Around, roles: Mapping[str, int], notes: list[str]) -> Sizes:
    """In workers. --workers overrides what torchrun's flags come to; --nproc-per-node is always this machine's room."""
    few, many = given.nnodes or (1, 1)
    if not 1 <= few <= many:
        raise BadInput(f"--nnodes {few}:{many} cannot be: it takes N, or MIN:MAX with 1 <= MIN <= MAX.")
    own = None if given.nproc_per_node is None else processes(given.nproc_per_node, around, notes)
    if given.workers is not None:
        low, high = given.workers
    elif roles and given.nnodes is None and own is None:
        low = high = sum(roles.values()) + (0 if "worker" in roles else 1)
    else:
        low, high = few * (own or 1), many * (own or 1)
    if not 1 <= low <= high:
        raise BadInput(f"--workers {low}:{high} cannot be: sizes must satisfy 1 <= MIN <= MAX.")
    if given.target is not None and not low <= given.target <= high:
        raise BadInput(f"--target {given.target} is not between the smallest size, {low}, and the largest, {high}.")
    named = sum(count for role, count in roles.items() if role != "worker")
    if named >= high:
        raise BadInput(f"--role names {named}, and the job has {high} at most: there must be a mere worker, too.")
    whole = given.workers is not None or (given.nnodes is None and bool(roles))
    capacity = own or (high + given.spares if whole else 1)
    return Sizes(low, high, capacity, many)


def processes(text: str, around: Around, notes: list[str]) -> int:
    """--nproc-per-node: a number, or what is to be counted on this machine, without importing a framework."""
    if text.isascii() and text.isdecimal() and int(text) > 0:
        return int(text)
    gpus = visible(around.variables.get("CUDA_VISIBLE_DEVICES"), around.gpus)
    xpus = visible(around.variables.get("ZE_AFFINITY_MASK"), None)
    counted = {
        "cpu": (around.cpus, "CPUs"),
        "gpu": (gpus, "GPUs"),
        "xpu": (xpus, "XPUs in ZE_AFFINITY_MASK"),
        "auto": (gpus, "GPUs") if gpus else (around.cpus, "CPUs, and no GPU"),
    }
    if text not in counted:
        raise BadInput(f"--nproc-per-node takes a number from 1 on, auto, cpu, gpu or xpu; got {text!r}.")
    count, what = counted[text]
    if not count:
        raise BadInput(f"--nproc-per-node {text}: there are no {what} to be seen here. Say how many workers: a number.")
    notes.append(f"--nproc-per-node {text}: there are {count} {what} here, so it is {count}")
    return count


def visible(listed: str | None, there: int | None) -> int:
    """How many devices a list of them leaves visible: it ends at the first that cannot be. None there: not known."""
    if listed is None:
        return there or 0
    if there == 0:
        return 0
    count = 0
    for device in listed.split(","):
        text = device.strip()
        if not text or text.startswith("-") or (text.isdecimal() and there is not None and int(text) >= there):
            break
        count += 1
    return count


def _room(given: Given, sizes: Sizes, alone: bool, notes: list[str]) -> None:
    """Say so if there is a wish that nobody on this machine can fulfil, or a machine that takes everything."""
    wanted = given.target or sizes.high
    if alone and sizes.capacity < sizes.low:
        notes.append(
            f"the job needs {sizes.low} workers, and there is room for {sizes.capacity} here: it waits for others"
        )
    elif alone and given.spares and sizes.capacity < wanted + given.spares:
        notes.append(
            f"not every spare has room: {wanted} workers and {given.spares} spares, {sizes.capacity} places here"
        )
    if not alone and given.workers is not None and given.nproc_per_node is None:
        notes.append(f"this machine has room for {sizes.capacity} workers, all of them: --nproc-per-node says fewer")


def _usual_s(given: Given) -> float:
    return SHUTDOWN_S if given.kind == "torch" else DEAF_SHUTDOWN_S


def _shutdown_s(given: Given, around: Around) -> float:
    if given.shutdown_timeout is not None:
        return given.shutdown_timeout
    text = around.variables.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT") or f"{_usual_s(given):g}"
    if not text.isdecimal():
        raise BadInput(f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT must be a number of seconds, not {text!r}.")
    return float(text)


def look_around() -> Around:
    """What `understand` has to know of this machine and its environment."""
    cpus, gpus = len(os.sched_getaffinity(0)), len(list(Path("/dev").glob("nvidia[0-9]*")))
    return Around(settings.read(), settings.with_prefix(*VARIABLES), cpus, gpus, look)
