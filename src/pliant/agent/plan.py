"""The plan of a `pliant run`: what this machine runs, and where its coordinator is."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from pliant.agent.last_command import CommandLine
from pliant.agent.logs.capture import LogOptions
from pliant.agent.process.script import Script
from pliant.agent.process.worker_env import Framework
from pliant.core.model.job import JobSpec
from pliant.credentials import NO_TLS_FILES, TlsFiles

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # torchrun's


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The job's settings, the script, and the agent's own options.

    A target in `spec` also changes the target of a job that exists.
    """

    job: str
    spec: JobSpec
    script: Script
    capacity: int  # how many workers this machine has room for
    servers: int = 0  # parameter servers that this machine runs beside its workers
    devices: int = 0  # accelerators to be seen here
    checkpoint_dir: str | None = None  # or a URL, the job's alone; None: in the job's own folder
    kind: Framework = "torch"
    role: str = "default"
    grace_s: float = 30.0
    shutdown_s: float = 30.0
    preload: tuple[str, ...] | None = None  # None: what this kind of script imports anyway
    local_addr: str | None = None
    fresh: bool = False
    override: bool = False  # the script's hyperparameters replace those of the checkpoint
    logs: LogOptions = field(default_factory=LogOptions)
    virtual_local_rank: bool = False
    signals: tuple[signal.Signals, ...] = SIGNALS
    notices: tuple[str, ...] = ()
    metrics: bool = False  # make a token with which Prometheus reads the metrics of the own coordinator
    command: CommandLine = field(default_factory=lambda: CommandLine(""))
    name_is_derived: bool = False  # from the script's name; the user gave none
    listen: tuple[str, int] | None = None  # where the own coordinator listens; None: a free port, for this machine only
    store: str | None = None  # of the own coordinator, as `--store` takes it; None: a file in the job's own folder
    tls: TlsFiles = NO_TLS_FILES  # of the own coordinator, if it serves an endpoint with TLS
