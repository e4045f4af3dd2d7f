"""What `pliant run` does before it starts workers: open the job, make their token, and say what they will find."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pliant import settings
from pliant.agent.folder import Folder
from pliant.client import Client
from pliant.core.messages import Code, Create, Resize
from pliant.core.model import AgentId, Target
from pliant.credentials import is_missing, parse_token, read_token, write_token
from pliant.errors import NotAllowed, PliantError, Refused
from pliant.wire.api import JobLine, Scope, TokenWish

SETUP_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run. `worker` is its command line; `target` None: as many as may be, or as the job has it."""

    job: str
    size_min: int
    size_max: int
    target: int | None
    worker: tuple[str, ...]
    grace_s: float = 30.0
    max_restarts: int = 3
    wait_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where a coordinator is to be found."""

    urls: tuple[str, ...]
    token_file: Path


def open_job(client: Client, plan: Plan, folder: Folder) -> JobLine:
    """Create the job, or take it up where it is. Refused if it has ended, or is another one of that name."""
    try:
        found = client.job(plan.job).job
    except Refused as error:
        if error.code != Code.NO_JOB:
            raise
        found = None
    if found is not None and found.state.ended:
        raise Refused(
            f"{plan.job} is {found.state.value}: {found.why}. To train again take another name with --job, "
            f"or move {folder.path} away."
        )
    wanted = Target(plan.target or plan.size_max)
    create = Create(plan.job, plan.size_min, plan.size_max, wanted, plan.wait_limit_s, plan.max_restarts)
    try:
        client.send(plan.job, create)  # the same again is no second job, and another of that name is refused
        if found is not None and plan.target is not None and found.target != plan.target:
            client.send(plan.job, Resize(wanted))
    except NotAllowed:
        if found is None:
            raise  # to join one that is there a narrower token will do
    return client.job(plan.job).job


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
    made = client.make_token(TokenWish(Scope.JOIN, job, label="workers of pliant run"))
    token = parse_token(made.token)
    if token is None:
        raise PliantError("The coordinator made a token that is none of ours. Is it of another version?")
    write_token(path, token)
    return path


def environment(plan: Plan, folder: Folder, place: Elsewhere, token_file: Path, agent: AgentId) -> dict[str, str]:
    """What every worker finds in its environment, besides its own name."""
    quiet = {
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "FATAL",  # gloo reports every wiring that was broken off as if it were an error
    }
    chosen = {name: value for name, value in quiet.items() if not settings.is_set(name)}
    return {
        "PLIANT_COORDINATOR": ",".join(place.urls),
        "PLIANT_JOB": plan.job,
        "PLIANT_AGENT": agent,
        "PLIANT_TOKEN_FILE": str(token_file),
        "PLIANT_CHECKPOINT_DIR": str(folder.checkpoints.absolute()),
        "PLIANT_GRACE_S": f"{plan.grace_s:g}",
        **chosen,
    }


def agent_id() -> AgentId:
    """The machine's name, as far as it can be a name of ours; short, since a member's begins with it."""
    name = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname().partition(".")[0])[:24].strip("-")
    return AgentId(name or "agent")
