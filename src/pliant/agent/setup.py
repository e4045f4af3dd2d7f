"""The steps of `pliant run` before it starts workers: open the job, make a token, and build their environment."""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pliant import settings
from pliant.agent.job_dir import JobDir
from pliant.agent.output import RunOutput
from pliant.agent.plan import RunPlan
from pliant.agent.process.worker_env import WorkerEnvironment
from pliant.client import Client
from pliant.client.addresses import local_address, own_address
from pliant.core.messages import AgentJoin, Code, Create, Resize
from pliant.core.messages.describe import describe_settings, setting_options
from pliant.core.model.job import Mode
from pliant.core.model.names import NAME_MAX, AgentId, bad_name
from pliant.credentials import (
    CoordinatorAddress,
    is_missing,
    parse_token,
    read_token,
    write_token,
)
from pliant.errors import BadInput, NotAllowed, NotSecure, PliantError, Refused, Unreachable
from pliant.train.checkpoint.storage import describe_other_owner, open_storage, owner_name
from pliant.wire.api import JobLine, JobStatus, Scope, TokenRequest

SETUP_S = 30.0
AGAIN_S = 1.0
LINGER_S = 3.0
CLOCK_S = 5.0  # a larger difference of clocks is reported


@dataclass(frozen=True, slots=True)
class OpenedJob:
    """A job as this agent found it (None: there was none) and as it is after `open_job`."""

    before: JobStatus | None
    now: JobStatus


def announce_join(place: CoordinatorAddress, output: RunOutput) -> None:
    """Print at once which coordinator this agent joins, and what is wrong if it does not answer at the first try."""
    output.say(f"joining the coordinator at {', '.join(place.urls)}")
    try:
        with Client(place.urls, read_token(place.token_file), patience_s=0.0, tls=place.tls) as client:
            client.about()
    except NotSecure:
        raise
    except Unreachable as error:
        output.warn(f"{error.why} Trying for {SETUP_S:g} s.")


def open_job(client: Client, plan: RunPlan, *, own: bool = True) -> OpenedJob:
    """Create the job, join it where it is, or begin another attempt if it has ended.

    Only the machine that runs the coordinator (`own`) starts another attempt, or changes the settings and the target:
    of many machines that run the same command, any may come late. With a store in etcd every machine runs a
    coordinator, and the first one does this.
    """
    found = _find_job(client, plan.job)
    own = own and not (plan.store is not None and found is not None and bool(found.agents))
    if found is not None and found.job.state.ended and not (own or plan.fresh):
        raise Refused(
            f"{plan.job} is {found.job.state.value}: {found.job.why}. To continue it, run it on the machine whose "
            f"`pliant run` hosts its coordinator, or run `pliant jobs create {plan.job} --workers MIN:MAX` first. "
            "--fresh starts over."
        )
    if found is not None and not (own or plan.fresh):
        return OpenedJob(found, found)
    target = plan.spec.target
    try:
        _create(client, plan, Create(plan.job, plan.spec, plan.fresh), own=own)  # repeated, it changes nothing
        if own and found is not None and target is not None and found.target != target:
            client.send(plan.job, Resize(target))
    except NotAllowed:
        if found is None or found.job.state.ended:
            raise  # a narrower token is enough to join an existing job
    return OpenedJob(found, client.job(plan.job))


def _find_job(client: Client, job: str) -> JobStatus | None:
    try:
        return client.job(job)
    except Refused as error:
        if error.code != Code.NO_JOB:
            raise
        return None


def describe_other_settings(opened: OpenedJob, plan: RunPlan) -> str:
    """Return which settings of the job changed, or which of this command it does not take; empty for none.

    A command that leaves out an option agrees with the job. So does a pod, whose job was created by the operator.
    """
    before, now = opened.before, opened.now
    if before is None:
        return ""
    ours, theirs, given = setting_options(now.spec), setting_options(plan.spec), plan.command.options
    chosen = [name for name in ours if name in given or (name == "--workers" and "--nnodes" in given)]
    other = ", ".join(f"{name} {ours[name]} -> {theirs[name]}" for name in chosen if ours[name] != theirs[name])
    if other:
        return f"the job keeps its own settings, not those of this command ({other})"
    changed = describe_settings(before.spec, now.spec)
    return f"settings changed: {changed}" if changed else ""


def describe_opening(found: JobLine, logs: Path) -> str:
    """Return the first line about a job: its size, and where the output of its workers is."""
    sizes = f"{found.size_min}" if found.size_min == found.size_max else f"{found.size_min} to {found.size_max}"
    wanted = "1 worker" if found.target == 1 else f"{found.target} workers"
    return f"{found.name}: {wanted} wanted ({sizes} allowed); logs in {logs}"


def _create(client: Client, plan: RunPlan, create: Create, *, own: bool) -> None:
    """Create the job. An agent that was killed here blocks a fresh start until its lease expires."""
    until = time.monotonic() + SETUP_S
    while True:
        try:
            client.send(plan.job, create)
        except Refused as error:
            if not (own and plan.fresh and error.code == Code.EXISTS) or time.monotonic() > until:
                raise
            time.sleep(AGAIN_S)
        else:
            return


def check_checkpoint_dir(client: Client, plan: RunPlan, folder: JobDir) -> None:
    """Raise BadInput if another job of this name owns the checkpoint storage. Workers check too, but late."""
    if plan.spec.mode is Mode.RELAUNCH:
        return  # such a script saves by itself
    where = checkpoint_dir(plan, folder)
    try:
        mark = open_storage(where).read_owner()
    except (OSError, BadInput):
        return  # the worker that writes there reports it
    if mark is not None and not mark.allows(_owner(client, plan.job)):
        raise BadInput(f"{describe_other_owner(where, mark)}.")


def _owner(client: Client, job: str) -> str:
    """Return the owner that marks this job's storage; a job that is still to be created has no mark anywhere."""
    found = _find_job(client, job)
    return owner_name(found.created_at) if found is not None else "none"


def worker_token(client: Client, job: str, folder: JobDir, place: CoordinatorAddress, scope: Scope) -> Path:
    """Return a file with a token that can only join this job; an earlier run's if it is still valid.

    `scope` is that of the agent's token: a narrow one is used for the workers as well.
    """
    path = folder.join_token.absolute()
    if scope is not Scope.ADMIN:
        return place.token_file.absolute()
    if not is_missing(path):
        with suppress(PliantError), Client(place.urls, read_token(path), patience_s=SETUP_S, tls=place.tls) as trial:
            trial.job(job)
            return path
    request = TokenRequest(Scope.JOIN, job, label="workers of pliant run", until_job_ends=True)
    _create_token(client, request, path)
    return path


def metrics_token(client: Client, folder: JobDir, place: CoordinatorAddress) -> Path:
    """Return a file with a token that can only read; an earlier run's if it is still valid."""
    path = folder.metrics_token.absolute()
    if not is_missing(path):
        with suppress(PliantError), Client(place.urls, read_token(path), patience_s=SETUP_S, tls=place.tls) as trial:
            trial.about()
            return path
    _create_token(client, TokenRequest(Scope.READ, label="metrics of pliant run"), path)
    return path


def _create_token(client: Client, request: TokenRequest, path: Path) -> None:
    token = parse_token(client.create_token(request).token)
    if token is None:
        raise PliantError("The coordinator made a token in an unknown format. Check its version of Pliant.")
    write_token(path, token)


# ------------------------------------------------------------------------------------------- names and addresses


def agent_id() -> AgentId:
    """Return PLIANT_AGENT, else the machine's whole name without characters that a name cannot have."""
    chosen = settings.read_worker().agent
    if chosen is not None:
        if wrong := bad_name(chosen):
            raise BadInput(f"PLIANT_AGENT cannot be an agent's name: {wrong}.")
        return AgentId(chosen)
    name = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname().partition(".")[0])[:NAME_MAX].strip("-")
    return AgentId(name or "agent")


def install_id(folder: JobDir) -> str:
    """Return an id that tells this agent from another machine's of the same name, also after a restart."""
    path = folder.path / "agent-home"
    with suppress(OSError):
        if word := path.read_text(encoding="ascii").strip():
            return word
    word = secrets.token_hex(8)
    try:
        path.write_text(f"{word}\n", encoding="ascii")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}.") from error
    return word


def agent_address(plan: RunPlan, place: CoordinatorAddress) -> str:
    """Return the address at which workers of other machines reach those of this one."""
    return own_address(plan.local_addr) if plan.local_addr is not None else local_address(place.urls[0])


def register_agent(
    client: Client,
    job: str,
    here: AgentJoin,
    ttl_s: float,
    say: Callable[[str], None],
    stopped: Callable[[float], bool],
) -> None:
    """Register this agent. Wait for the lease of an agent with the same name, which may just have died elsewhere.

    `stopped` waits for a number of seconds and returns whether the user stops this agent.
    """
    limit_s = ttl_s * 1.5
    until = time.monotonic() + limit_s
    waits = False
    while True:
        try:
            client.send(job, here)
        except Refused as error:
            if error.code == Code.ENDED:
                return  # the orders report it
            if error.code != Code.EXISTS or time.monotonic() > until:
                raise
            if not waits:
                say(f"{error.why}; if that agent is gone, its lease expires within {limit_s:.0f} s")
            waits = True
            if stopped(AGAIN_S):
                return
        else:
            return


def wait_for_other_agents(place: CoordinatorAddress, job: str) -> None:
    """Keep this machine's coordinator a little longer, so that other agents learn how the job ended."""
    token = read_token(place.token_file)
    with suppress(PliantError), Client(place.urls, token, patience_s=1.0, tls=place.tls) as client:
        found = client.job(job)
        if found.job.state.ended and len(found.agents) > 1:
            time.sleep(LINGER_S)


def describe_clock_skew(now: float) -> str:
    """Return a warning if the coordinator's clock differs from this machine's; empty if it hardly does."""
    ahead = time.time() - now
    if not now or abs(ahead) <= CLOCK_S:
        return ""
    how = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
    return f"this machine's clock is {how} the coordinator's: nothing is decided by it, but times in logs will not fit"


# ------------------------------------------------------------------------------------------- what workers find


def worker_environment(
    plan: RunPlan, folder: JobDir, place: CoordinatorAddress, token_file: Path, agent: AgentId, generation: int = 0
) -> dict[str, str]:
    """Return the environment of every worker, without its name and the variables of its launch.

    `generation` is the job's last one before this start.
    """
    defaults = {}
    if plan.spec.mode is not Mode.RELAUNCH:
        defaults["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # gloo logs every aborted connection as an error
    if plan.capacity > 1 or plan.spec.mode in (Mode.LIVE, Mode.TASKS):
        defaults["OMP_NUM_THREADS"] = "1"  # as torchrun: several workers of a machine share its cores
    if plan.devices and plan.spec.mode is not Mode.RELAUNCH:
        defaults["MALLOC_ARENA_MAX"] = "2"  # threads of each process group of NCCL leave 3 MB in arenas of their own
    chosen = {name: value for name, value in defaults.items() if not settings.is_set(name)}
    where = {"PLIANT_ADDRESS": own_address(plan.local_addr)} if plan.local_addr is not None else {}
    return {
        "PLIANT_COORDINATOR": ",".join(place.urls),
        "PLIANT_JOB": plan.job,
        "PLIANT_AGENT": agent,
        "PLIANT_TOKEN_FILE": str(token_file),
        **place.tls.environment,
        "PLIANT_CHECKPOINT_DIR": checkpoint_dir(plan, folder),
        "PLIANT_GRACE_S": f"{plan.grace_s:g}",
        **({"PLIANT_OVERRIDE": str(generation)} if plan.override else {}),
        **where,
        **chosen,
    }


def checkpoint_dir(plan: RunPlan, folder: JobDir) -> str:
    """Return the storage of the job's checkpoints."""
    return plan.checkpoint_dir or str(folder.checkpoints.absolute())


def worker_settings(plan: RunPlan, folder: JobDir) -> WorkerEnvironment:
    """Return the settings that the environments of all launches share."""
    return WorkerEnvironment(
        kind=plan.kind,
        job=plan.job,
        error_dir=folder.errors.absolute(),
        max_restarts=plan.spec.max_restarts,
        role=plan.role,
        capacity=plan.capacity,
        devices=plan.devices,
        virtual_local_rank=plan.virtual_local_rank,
        signals=",".join(each.name for each in plan.signals),
        user=settings.child_environment({}),
    )
