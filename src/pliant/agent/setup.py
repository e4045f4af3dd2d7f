"""What `pliant run` does before it starts workers: open the job, make their token, and say what they will find."""

from __future__ import annotations

import re
import secrets
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pliant import settings
from pliant.agent.job_dir import Folder
from pliant.agent.logs.capture import Logs
from pliant.agent.process.script import Script
from pliant.agent.process.worker_env import Kind, Surroundings
from pliant.client import Client
from pliant.client.addresses import local_address, own_address
from pliant.core.messages import AgentJoin, Code, Create, Resize
from pliant.core.model.job import JobSpec, Mode
from pliant.core.model.names import AgentId, bad_name
from pliant.credentials import is_missing, parse_token, read_token, write_token
from pliant.errors import BadInput, NotAllowed, PliantError, Refused
from pliant.train.checkpoint.storage import describe_other_owner, open_storage, owner_name
from pliant.wire.api import JobLine, Scope, TokenRequest

SETUP_S = 30.0
AGAIN_S = 1.0
LINGER_S = 3.0
CLOCK_S = 5.0  # a clock that is further off than this is worth a word
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # torchrun's


@dataclass(frozen=True, slots=True)
class Plan:
    """What this machine runs: the job's settings, the script, and the agent's own options.

    A target in `spec` also changes the target of a job that exists.
    """

    job: str
    spec: JobSpec
    script: Script
    capacity: int  # how many workers this machine has room for
    devices: int = 0  # accelerators to be seen here
    checkpoint_dir: str | None = None  # or a URL, the job's alone; None: in the job's own folder
    kind: Kind = "torch"
    role: str = "default"
    grace_s: float = 30.0
    shutdown_s: float = 30.0
    preload: tuple[str, ...] | None = None  # None: what this kind of script imports anyway
    local_addr: str | None = None
    fresh: bool = False
    logs: Logs = field(default_factory=Logs)
    virtual_local_rank: bool = False
    signals: tuple[signal.Signals, ...] = SIGNALS
    notices: tuple[str, ...] = ()
    listen: tuple[str, int] | None = None  # where our own coordinator listens; None: a free port, for this machine only


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where a coordinator is to be found."""

    urls: tuple[str, ...]
    token_file: Path


def open_job(client: Client, plan: Plan, *, own: bool = True) -> JobLine:
    """Create the job, take it up where it is, or begin another attempt if it has ended.

    The last, and another target, are for who keeps the coordinator (`own`): of many machines that are started with one
    command line any may come late.
    """
    try:
        found = client.job(plan.job).job
    except Refused as error:
        if error.code != Code.NO_JOB:
            raise
        found = None
    if found is not None and found.state.ended and not (own or plan.fresh):
        raise Refused(
            f"{plan.job} is {found.state.value}: {found.why}. Who keeps its coordinator starts it again, or --fresh."
        )
    create = Create(plan.job, plan.spec, plan.fresh)
    target = plan.spec.target
    try:
        _create(client, plan, create, own=own)  # the same again is no second job, another of that name is refused
        if own and found is not None and target is not None and found.target != target.size:
            client.send(plan.job, Resize(target))
    except NotAllowed:
        if found is None or found.state.ended:
            raise  # to join one that is there a narrower token will do
    return client.job(plan.job).job


def _create(client: Client, plan: Plan, create: Create, *, own: bool) -> None:
    """An agent that was killed here is in the way of a fresh start until its lease is over."""
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


def check_place(client: Client, plan: Plan, folder: Folder) -> None:
    """BadInput if another job of this name saves where this one's workers would. They look, too, but late."""
    if plan.spec.mode is Mode.RELAUNCH:
        return  # what such a script saves, and how, is its own affair
    where = _checkpoint_dir(plan, folder)
    try:
        mark = open_storage(where).read_owner()
    except (OSError, BadInput):
        return  # it is for whoever wants to write there to say so
    if mark is not None and not mark.allows(_owner(client, plan.job)):
        raise BadInput(f"{describe_other_owner(where, mark)}.")


def _owner(client: Client, job: str) -> str:
    """Nobody that a place could have, if the job is not there yet."""
    try:
        return owner_name(client.job(job).created_at)
    except Refused as error:
        if error.code != Code.NO_JOB:
            raise
        return "nobody"


def worker_token(client: Client, job: str, folder: Folder, place: Elsewhere, scope: Scope) -> Path:
    """A file with a token that joins this job and does nothing else; the one of an earlier run if it is good still.

    `scope` is that of our own token: a narrow one is the workers' as well.
    """
    path = folder.join_token.absolute()
    if scope is not Scope.ADMIN:
        return place.token_file.absolute()
    if not is_missing(path):
        with suppress(PliantError), Client(place.urls, read_token(path), patience_s=SETUP_S) as trial:
            trial.job(job)
            return path
    made = client.make_token(TokenRequest(Scope.JOIN, job, label="workers of pliant run"))
    token = parse_token(made.token)
    if token is None:
        raise PliantError("The coordinator made a token that is none of ours. Is it of another version?")
    write_token(path, token)
    return path


# ------------------------------------------------------------------------------------------- who and where we are


def agent_id() -> AgentId:
    """What PLIANT_AGENT says, else the machine's name as far as it can be one of ours.

    Short, since a member's begins with it.
    """
    chosen = settings.read_worker().agent
    if chosen is not None:
        if wrong := bad_name(chosen) or ("it is longer than 32 characters" if len(chosen) > 32 else ""):
            raise BadInput(f"PLIANT_AGENT cannot be an agent's name: {wrong}.")
        return AgentId(chosen)
    name = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname().partition(".")[0])[:24].strip("-")
    return AgentId(name or "agent")


def home_of(folder: Folder) -> str:
    """A word that tells this agent from another machine's of the same name, also after a restart."""
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


def address_of(plan: Plan, place: Elsewhere) -> str:
    """Where workers of other machines reach ours."""
    return own_address(plan.local_addr) if plan.local_addr is not None else local_address(place.urls[0])


def introduce(
    client: Client,
    job: str,
    here: AgentJoin,
    ttl_s: float,
    say: Callable[[str], None],
    stopped: Callable[[float], bool],
) -> None:
    """Offer our room, and see that we are welcome. One of our name may just have died elsewhere: its lease is awaited.

    `stopped` waits so long, and says whether somebody wants us to end.
    """
    limit_s = ttl_s * 1.5
    until = time.monotonic() + limit_s
    waits = False
    while True:
        try:
            client.send(job, here)
        except Refused as error:
            if error.code == Code.ENDED:
                return  # the orders will say so
            if error.code != Code.EXISTS or time.monotonic() > until:
                raise
            if not waits:
                say(f"{error.why}; if that one is gone, it is forgotten within {limit_s:.0f} s")
            waits = True
            if stopped(AGAIN_S):
                return
        else:
            return


def linger(place: Elsewhere, job: str) -> None:
    """Call before our own coordinator goes: others may be between two questions, and are to hear how the job ended."""
    with suppress(PliantError), Client(place.urls, read_token(place.token_file), patience_s=1.0) as client:
        found = client.job(job)
        if found.job.state.ended and len(found.agents) > 1:
            time.sleep(LINGER_S)


def clock_off(now: float) -> str:
    """What to say about a coordinator whose clock shows that; empty if it is about right."""
    ahead = time.time() - now
    if not now or abs(ahead) <= CLOCK_S:
        return ""
    how = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
    return f"this machine's clock is {how} the coordinator's: nothing is decided by it, but times in logs will not fit"


# ------------------------------------------------------------------------------------------- what workers find


def environment(plan: Plan, folder: Folder, place: Elsewhere, token_file: Path, agent: AgentId) -> dict[str, str]:
    """What every worker finds in its environment, besides its own name and what its launch says."""
    quiet = {}
    if plan.spec.mode is not Mode.RELAUNCH:
        quiet["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # gloo reports every wiring that is broken off as if it were an error
    if plan.capacity > 1 or plan.spec.mode is Mode.LIVE:
        quiet["OMP_NUM_THREADS"] = "1"  # as torchrun: several workers on a machine must not each take all of it
    chosen = {name: value for name, value in quiet.items() if not settings.is_set(name)}
    where = {"PLIANT_ADDRESS": own_address(plan.local_addr)} if plan.local_addr is not None else {}
    return {
        "PLIANT_COORDINATOR": ",".join(place.urls),
        "PLIANT_JOB": plan.job,
        "PLIANT_AGENT": agent,
        "PLIANT_TOKEN_FILE": str(token_file),
        "PLIANT_CHECKPOINT_DIR": _checkpoint_dir(plan, folder),
        "PLIANT_GRACE_S": f"{plan.grace_s:g}",
        **where,
        **chosen,
    }


def _checkpoint_dir(plan: Plan, folder: Folder) -> str:
    return plan.checkpoint_dir or str(folder.checkpoints.absolute())


def surroundings(plan: Plan, folder: Folder) -> Surroundings:
    """What torchrun's environment of every launch has in common."""
    return Surroundings(
        kind=plan.kind,
        job=plan.job,
        error_dir=folder.errors.absolute(),
        max_restarts=plan.spec.max_restarts,
        role=plan.role,
        capacity=plan.capacity,
        devices=plan.devices,
        virtual_local_rank=plan.virtual_local_rank,
        signals=",".join(each.name for each in plan.signals),
        user=settings.for_child({}),
    )
