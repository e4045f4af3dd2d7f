"""Training without a coordinator: its decisions are made in this process, for a job of one member.

A script runs unchanged without any other process, and through the same code as in a larger world. With checkpoint
storage it saves at intervals, on Ctrl-C and at the end. The next start of the script is the job's next attempt.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from pliant.core.job.checkpoints import checkpoint_step, writer_generation
from pliant.core.job.decide import decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.member import signals as s
from pliant.core.messages import (
    CheckpointPublished,
    Command,
    Create,
    Drain,
    DrainAgent,
    Join,
    PartNotWritten,
    Rejection,
    RequestCheckpoint,
)
from pliant.core.model.checkpoint import NO_POLICY, Checkpoint, CheckpointPolicy
from pliant.core.model.job import Job, JobSpec, JobState, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import view_of
from pliant.errors import Refused
from pliant.train.checkpoint import DamagedCheckpoint, Storage, StorageUnreachable, read_manifest
from pliant.train.coordinator_link import LinkListener

log = logging.getLogger(__name__)

TICK_S = 1.0
SAVE_EVERY_S = 600.0  # as `pliant run` by default
TERMS_FILE = "terms.json"  # in each checkpoint: the settings that the next start must share
OWNER = "alone"  # of the storage


@dataclass(frozen=True, slots=True)
class SavedRun:
    """The terms of an earlier start of the script, and its checkpoints, oldest first."""

    terms: Terms
    checkpoints: tuple[Checkpoint, ...]


def find_saved_run(storage: Storage) -> SavedRun | None:
    """Return what an earlier start left in the storage. Checkpoints that cannot be read are skipped."""
    found: list[Checkpoint] = []
    terms: Terms | None = None
    for name in sorted(storage.checkpoint_names(), key=checkpoint_step):
        try:
            checkpoint = read_manifest(storage, name).checkpoint
            with storage.open_file(name, TERMS_FILE) as file:
                terms = msgspec.json.decode(file.read(), type=Terms)
        except (DamagedCheckpoint, StorageUnreachable, OSError, msgspec.MsgspecError) as error:
            log.warning("checkpoint %s is skipped: %s", name, error)
            continue
        found.append(checkpoint)
    return SavedRun(terms, tuple(found)) if terms is not None else None


class StandaloneCoordinator:
    """The coordinator link of a member that trains alone."""

    def __init__(self, job: str, member: MemberId, storage: Storage | None = None) -> None:
        self._member = member
        self._agent = AgentId("")
        self._storage = storage
        self._saved_at = time.monotonic()
        spec = JobSpec(1, 1, Target(1), checkpoints=CheckpointPolicy(seconds=SAVE_EVERY_S) if storage else NO_POLICY)
        saved = find_saved_run(storage) if storage is not None else None
        self.resumes_at = saved.checkpoints[-1].lineage.step if saved is not None else 0
        self._job: Job | None = _earlier_attempt(job, spec, saved) if saved is not None else None
        self._revision = 0
        self._listener: LinkListener | None = None
        self._commands: deque[Command] = deque()
        self._deciding = False
        self._closing = threading.Event()
        self._decide(Create(job, spec))

    def training(self) -> None:
        """Return None: no other member can be training."""

    def join(self, command: Join) -> None:
        self._agent = command.agent
        self._decide(command)

    def start(self, listener: LinkListener) -> None:
        self._listener = listener
        self._send_view()
        threading.Thread(target=self._tick, args=(listener,), name="pliant-tick", daemon=True).start()

    def _tick(self, listener: LinkListener) -> None:
        """Feed ticks, so that progress is reported now and then and reported lines are dropped."""
        while not self._closing.wait(TICK_S):
            listener.feed(s.Tick())

    def send(self, command: Command) -> None:
        """Decide the command at once, one after the other: a new view may cause the next command."""
        if isinstance(command, Drain):  # no other member can take over: save at the next boundary
            command = DrainAgent(self._agent, command.grace_s, command.why, immediate=True)
        self._commands.append(command)
        if self._storage is not None and time.monotonic() - self._saved_at >= SAVE_EVERY_S:
            self._saved_at = time.monotonic()
            self._commands.append(RequestCheckpoint("it is time"))
        if self._deciding:
            return
        self._deciding = True
        try:
            while self._commands:
                self._decide(self._commands.popleft())
                self._send_view()
        finally:
            self._deciding = False

    def close(self) -> None:
        """Stop the ticks."""
        self._closing.set()

    def _decide(self, command: Command) -> None:
        decision = decide(self._job, command, 0.0)
        if isinstance(decision, Rejection):
            if isinstance(command, Create | Join):
                raise Refused(decision.why, decision.code.value)
            return
        for event in decision:
            if isinstance(event, CheckpointPublished) and (why := self._write_terms(event.checkpoint)):
                self._decide(PartNotWritten(self._member, event.generation, event.checkpoint.name, why))
                return
            self._job = evolve(self._job, event)
        if self._job is not None:
            self._job, _ = settle_all(self._job, 0.0)
        self._revision += 1

    def _write_terms(self, checkpoint: Checkpoint) -> str:
        """Write the terms into a checkpoint before it is published. Its manifest follows. Return why that failed."""
        if self._storage is None or self._job is None or self._job.terms is None:
            return ""
        terms = replace(self._job.terms, grid=self._job.terms.grid.up_to(checkpoint.lineage.step))
        try:
            with suppress(FileExistsError):
                self._storage.write_file(checkpoint.name, TERMS_FILE, msgspec.json.encode(terms))
        except OSError as error:
            why = error.strerror or str(error)
            log.error("checkpoint %s could not be written: %s", checkpoint.name, why)
            return why
        self._saved_at = time.monotonic()
        return ""

    def _send_view(self) -> None:
        if self._listener is not None and self._job is not None:
            self._listener.feed(s.Durable(self._revision, self._job.durable))
            self._listener.view_received(view_of(self._job, self._revision, self._member), ())


def _earlier_attempt(name: str, spec: JobSpec, saved: SavedRun) -> Job:
    """Return the job as its earlier attempt ended: a start after it continues from the newest checkpoint."""
    *older, newest = saved.checkpoints
    last = max(writer_generation(each.name) for each in saved.checkpoints)
    job = Job(name=name, spec=spec, target=spec.initial_target, terms=saved.terms, state=JobState.CANCELLED)
    return replace(
        job,
        generation=last,
        sealed=last,
        rollback_generation=last,
        durable=newest.lineage,
        checkpoint=newest,
        older_checkpoints=tuple(older),
    )
