"""A worker's membership in a job, from `join()` to the end of the `with` block. Each framework adds its `train`."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

from pliant import settings
from pliant.client.addresses import local_address
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.hangs import user_code_limit_s
from pliant.core.job.launches import STUCK_CODE
from pliant.core.member import signals as s
from pliant.core.messages import Join
from pliant.core.model.fingerprint import Fingerprint
from pliant.core.model.job import Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World
from pliant.credentials import TlsFiles, read_token
from pliant.errors import BadInput, PliantError
from pliant.train.checkpoint import open_storage, owner_name
from pliant.train.coordinator_link import JobAlreadyEnded, MemberLink
from pliant.train.data.batch_size import BatchSize
from pliant.train.data.loader import SampleError, SampleIndices, WrongSamples
from pliant.train.data.microbatches import MicroBatcher
from pliant.train.group.contract import GroupWiring
from pliant.train.live.checkpointing import MemberCheckpoints
from pliant.train.live.engine import Engine, LiveState, PartLoader, StepTables
from pliant.train.live.errors import Left, NonFiniteGradient, hide_own_frames
from pliant.train.live.evaluate import BATCH_TOTALS, EvaluationResults
from pliant.train.live.loop import Loop
from pliant.train.live.options import VerifyOptions
from pliant.train.live.replay import Replay
from pliant.train.live.run import LiveRun
from pliant.train.live.state_hash import StateHash
from pliant.train.peer.kv import PeerValues
from pliant.train.peer.server import PeerLost, PeerServer
from pliant.train.process import InterruptHandler, SigtermListener, StallWatchdog, log_to_stderr, process_age_s
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.reduce.noise import NoiseScale
from pliant.train.session import Session
from pliant.train.standalone import OWNER, SAVE_EVERY_S, StandaloneCoordinator
from pliant.train.state.flat import State, leaf_sizes
from pliant.train.state.memory import PreparedMemory
from pliant.train.state.state_lock import StateLock
from pliant.train.state.transfer import StateDownload, StateSource, prepare_memory

if TYPE_CHECKING:
    from pliant.train.peer.tls import PeerTls

log = logging.getLogger(__name__)

STALL_S = 300.0
SAVING_MAX_S = 3600.0  # of the save after Ctrl-C; a second Ctrl-C ends it
STORE = "store"
STATE_SIZES_MAX = 8  # a state has at most this many times the bytes that it has before the first step
REPORTED_SLOTS_MAX = 1024  # slots in the report of an exception


def prepare_join(refuse: Callable[[], None]) -> tuple[settings.Settings, settings.WorkerSettings]:
    """Return the settings of this worker's job. `refuse` raises if the framework forms a group of its own."""
    log_to_stderr()
    hide_own_frames()
    found, worker = settings.read(), settings.read_worker()
    if not found.coordinators:
        if worker.world_size > 1:
            raise BadInput(
                f"WORLD_SIZE is {worker.world_size}, but PLIANT_COORDINATOR is not set. Start the workers with "
                "`pliant run`, or set PLIANT_COORDINATOR, PLIANT_JOB and PLIANT_TOKEN_FILE."
            )
        log.info("PLIANT_COORDINATOR is not set: training alone, in a world of one")
    elif found.job is None:
        raise BadInput("PLIANT_COORDINATOR is set, but PLIANT_JOB is not. Set PLIANT_JOB to the name of the job.")
    else:
        refuse()
        settings.forget_launch()
    _close_open_job(alone=not found.coordinators)
    return found, worker


def _close_open_job(*, alone: bool) -> None:
    """Close a job that an earlier call left open: a notebook's cell without `with` that runs again."""
    if (job := LiveJob.open) is None:
        return
    if not alone:
        raise BadInput(
            "pliant.join() was called while this process trains already. Use `with pliant.join() as job:`, and call it "
            "once."
        )
    log.info("the run before is closed at step %d; use `with pliant.join() as job:` to close it in time", job.step)
    try:
        job.__exit__(None, None, None)
    except BadInput as error:
        log.info("its last step is dropped: %s", error)  # it was interrupted within the step


AnyRun = TypeVar("AnyRun", bound=LiveRun)


class LiveJob(ABC):
    """This worker's membership in a job. It ends with the `with` block."""

    open: ClassVar[LiveJob | None] = None  # the job that trains in this process
    warms_up: ClassVar[bool] = False  # whether a worker computes an item before it joins a job that trains already

    def __init__(self, found: settings.Settings, worker: settings.WorkerSettings) -> None:
        self._settings = found
        self._worker = worker
        self.name = found.job or "alone"
        host = socket.gethostname().split(".")[0].lower()
        agent = worker.agent or host
        self.member = MemberId(worker.member or f"{host}-{os.getpid()}-{secrets.token_hex(3)}")
        self._agent = AgentId(agent)
        self._run: LiveRun | None = None
        self._loop: Loop | None = None
        self._prepare_reduction: Callable[[int], None] | None = None  # for a world of that size
        self._session: Session | None = None
        self._link: MemberLink | StandaloneCoordinator | None = None
        self._indices: SampleIndices | None = None
        self._peers: PeerServer | None = None
        self._peer_values = PeerValues()
        self._results = EvaluationResults()
        self._tables: StepTables | None = None  # set before `_assemble`, if there are some
        self._host = "127.0.0.1"
        self._checkpoint_dir: str | None = None
        self._interrupt: InterruptHandler | None = None
        self._closing: list[Callable[[], None]] = []
        self._on_leave: list[Callable[[], None]] = []

    def on_leave(self, fn: Callable[[], None]) -> None:
        """Call `fn()` when this member leaves before training is complete."""
        self._on_leave.append(fn)

    @property
    def step(self) -> int:
        """The step of the last item."""
        return self._loop.step if self._loop is not None else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if isinstance(error, Left):
                self._leave(error)
            elif error is not None:
                self._report_exception(error)
            if self._run is not None:
                self._run._left_item()  # after the report: it may raise as well, on a device that failed
            if error is None and self._run is not None and self._loop is not None and not self._run.complete:
                self._end_loop(self._loop)
                self._run.complete = True
        finally:
            if self._run is not None:
                self._run._close_log()
            for close in reversed(self._closing):
                close()
            self._closing.clear()
            LiveJob.open = None

    def _end_loop(self, loop: Loop) -> None:
        """Take part in what the others do, after user code left its loop without an exception."""
        if self._run is not None and loop.is_after_step:
            self._run._end_rows()
        try:
            loop.leave()
        except BadInput as error:
            self._report_exception(error)
            raise

    # -------------------------------------------------------------------------------------------- assembly

    def _open_once(self) -> None:
        if self._session is not None:
            raise BadInput("job.train was called twice. A job trains one model: join another job for another model.")
        LiveJob.open = self

    def _open_loader(self, loader: PartLoader) -> PartLoader:
        """Start to load, before any thread and any socket: a forked data worker would hold them open."""
        loader.start()
        self._closing.append(loader.close)
        return loader

    @property
    def _evaluation(self) -> tuple[EvaluationResults, Callable[[bytes], None]]:
        """The place where the results of evaluations arrive, and the function that sends this member's."""
        return self._results, self._send_batch_totals

    def _opened(self, run: AnyRun) -> AnyRun:
        """Keep the run, to close its log at the end."""
        self._run, run._tables = run, self._tables
        return run

    def _terms(self, grid: Grid, options: VerifyOptions, extra: tuple[tuple[str, str], ...]) -> Terms:
        snapshots = options.snapshot_every if self._settings.coordinators else 0  # alone, no member can differ
        encrypted = self._settings.ca_file is not None
        tables = self._tables.terms if self._tables is not None else ()
        return Terms(grid, options.seed, snapshots, (*extra, *tables, *options.terms), options.verify, encrypted)

    def _assemble(
        self,
        terms: Terms,
        engine: Engine,
        loader: PartLoader,
        logged: StepMetrics,
        options: VerifyOptions,
        parts: MicroBatcher,
        indices: SampleIndices,
        fingerprint: Fingerprint,
        noise: NoiseScale | None,
        batch: BatchSize | None,
    ) -> Loop:
        """Build the training loop and everything that it uses; nothing is started yet."""
        self._indices = indices
        state_lock = StateLock()
        self._closing.append(engine.reducer.close)
        self._prepare_reduction = engine.reducer.prepare
        checkpoints = self._checkpoints(engine.state, terms.grid, goes_back=options.verify > 0)
        session = self._connect(terms, state_lock, engine.state, checkpoints)
        hashes = StateHash(engine.state, options.verify)
        tools = (engine, loader, state_lock, checkpoints, logged, parts, hashes)
        loop = self._loop = Loop(
            session, *tools, indices=indices, checks=options.checks, noise=noise, batch=batch, seed=terms.seed
        )
        if batch is not None:
            batch.bind(loop)
        if (file := self._worker.replay_file) is not None:
            loop.replay = Replay(self._worker.replay_to or 0, file, terms, fingerprint, hashes)
        return loop

    def _checkpoints(self, state: LiveState, grid: Grid, *, goes_back: bool) -> MemberCheckpoints:
        where = self._worker.checkpoint_dir
        if not self._settings.coordinators:
            where = self._checkpoint_dir or where
        storage = open_storage(where) if where is not None else None
        through = self._worker.override_through
        checkpoints = MemberCheckpoints(
            state, storage, self.name, self.member, grid, goes_back=goes_back, override_through=through
        )
        self._closing.append(checkpoints.close)
        return checkpoints

    def _connect(
        self, terms: Terms, state_lock: StateLock, state: LiveState, checkpoints: MemberCheckpoints
    ) -> Session:
        link = self._link = self._open_link(checkpoints)
        shared_memory = state.shared_memory() if self._settings.coordinators else None
        if self._settings.coordinators:
            source = StateSource(state_lock, state.layout, state.content, self._gradient, self._lines, shared_memory)
            self._peers = PeerServer(
                self._host,
                self.member,
                self._receive,
                lambda _g, _asker, kind, head: source.answer(kind, head),
                self._peer_tls(),
            )
        collect_garbage = checkpoints.collect_garbage if checkpoints.can_save else None
        expected_bytes = sum(leaf_sizes(state.layout()[0]))
        memory, prepare = PreparedMemory(), None
        if self._peers is not None and shared_memory is None:
            prepare = partial(prepare_memory, memory, self._peers, STATE_SIZES_MAX * expected_bytes)
        download = partial(StateDownload, shared_memory=shared_memory, expected_bytes=expected_bytes, memory=memory)
        on_view = self._tables.view_received if self._tables is not None else None
        session = Session(
            self.member,
            terms,
            link,
            self._peers,
            self._make_wiring,
            self._forget,
            collect_garbage,
            download,
            on_view,
            prepare,
        )
        self._session = session
        if self._tables is not None:
            self._closing.append(self._tables.close)
        checkpoints.feed = session.feed
        self._closing.append(session.close)
        self._closing.append(state_lock.close)
        return session

    def _open_link(self, checkpoints: MemberCheckpoints) -> MemberLink | StandaloneCoordinator:
        """Connect to the coordinator and claim the checkpoint storage for the job."""
        coordinators = self._settings.coordinators
        if not coordinators:
            return self._open_alone(checkpoints)
        token = read_token(self._settings.token_file or self._settings.own_token_file)
        tls = TlsFiles(self._settings.ca_file, self._settings.cert_file, self._settings.key_file)
        link = MemberLink(coordinators, token, self.name, self.member, tls)
        try:
            checkpoints.claim_storage(lambda: owner_name(link.job_created_at()))
        except PliantError:
            link.close()
            raise
        self._host = self._worker.address or local_address(coordinators[0])
        return link

    def _peer_tls(self) -> PeerTls | None:
        """Return the encryption between members; None if no CA is configured."""
        if self._settings.ca_file is None:
            return None
        from pliant.train.peer.tls import PeerTls

        return PeerTls()

    def _open_alone(self, checkpoints: MemberCheckpoints) -> StandaloneCoordinator:
        checkpoints.claim_storage(lambda: OWNER)
        link = StandaloneCoordinator(self.name, self.member, checkpoints.storage)
        if checkpoints.storage is None:
            log.info(
                "no checkpoint is written: set PLIANT_CHECKPOINT_DIR, or pass checkpoint_dir= to job.train, to save "
                "the state and resume"
            )
        elif link.resumes_at:
            log.info("resuming at step %d from %s", link.resumes_at, checkpoints.storage.location)
        else:
            log.info(
                "saving to %s every %.0f minutes, on Ctrl-C and at the end",
                checkpoints.storage.location,
                SAVE_EVERY_S / 60,
            )
        return link

    # ------------------------------------------------------------------ called by the session and by the peers

    def _receive(self, generation: int, _sender: MemberId, kind: str, head: bytes) -> None:
        """Pass a peer's message on. None arrives before the session exists, which brings the peers' keys."""
        if kind == STORE:
            self._peer_values.receive(generation, head)
        elif kind == BATCH_TOTALS:
            self._results.receive(head)
        elif self._session is not None:
            self._session.message_received(generation, kind, head)

    @abstractmethod
    def _make_wiring(self, world: World, key: str) -> GroupWiring:
        """Return the construction of the group of a world."""

    def _forget(self, below: int) -> None:
        """Drop what belongs to generations below a number."""
        self._peer_values.forget_below(below)
        if self._peers is not None:
            self._peers.forget_below(below)

    # ------------------------------------------------------------------------------------- start and end

    def _start(self, join: Join, stall_s: float) -> None:
        """Join the job; where others train already, only once user code has computed its first items."""
        assert self._loop is not None
        assert self._link is not None
        end = partial(os._exit, STUCK_CODE) if self._settings.coordinators else None
        watchdog = StallWatchdog(self.member, lambda: self._user_code_limit_s(stall_s), self._busy_since, end)
        self._closing.append(watchdog.close)
        training = self._link.training()
        if training is not None and self._prepare_reduction is not None:
            self._prepare_reduction(training.size + 1)
        if training is None or not self.warms_up:
            self._enter(join)
        else:
            self._loop.warm_up(training.step, training.size + 1, partial(self._enter, join))

    def _enter(self, join: Join) -> None:
        session = self._session
        assert session is not None
        address = self._peers.address if self._peers is not None else ""
        try:
            session.start(replace(join, address=address, pid=os.getpid(), age_s=process_age_s()))
        except JobAlreadyEnded as late:
            raise Left(late.code, late.why) from late
        self._handle_sigterm(session)

    def _wait_for_servers(self) -> None:
        """Raise `Left` if this member must not even finish its item. Its tables call it while they wait for servers."""
        session, loop = self._session, self._loop
        if session is not None and loop is not None:
            loop.note_progress()
            session.require_member()

    def _gradient(self, lineage: Lineage) -> State | None:
        return self._loop.gradient(lineage) if self._loop is not None else None

    def _lines(self) -> tuple[LedgerLine, ...]:
        return self._session.ledger_lines() if self._session is not None else ()

    def _busy_since(self) -> float | None:
        return self._loop.in_user_code_since if self._loop is not None else None

    def _user_code_limit_s(self, stall_s: float) -> float:
        loop, session = self._loop, self._session
        if loop is None or session is None:
            return stall_s
        world = session.machine.world
        alone = world is None or len(world.members) == 1
        return user_code_limit_s(stall_s, session.grace_s, loop.longest_in_user_code_s, alone=alone)

    def _send_batch_totals(self, head: bytes) -> None:
        session = self._session
        if self._peers is not None and session is not None and session.machine.world is not None:
            world = session.machine.world
            for member in world.members:
                if member != self.member:
                    with suppress(PeerLost):  # then that member computes the batch itself
                        self._peers.notify(world.number, member, BATCH_TOTALS, head)

    def _handle_sigterm(self, session: Session) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        if self._settings.coordinators:
            grace_s = self._worker.grace_s
            notice = SigtermListener(lambda: session.feed(s.DrainNotice(grace_s, "SIGTERM")))
            self._closing.append(notice.close)
        elif session.machine.can_save:
            self._interrupt = InterruptHandler(lambda why: session.feed(s.DrainNotice(SAVING_MAX_S, why)))
            self._closing.append(self._interrupt.close)

    def _leave(self, left: Left) -> None:
        if self._interrupt is not None and self._interrupt.exit_code:
            left.code = self._interrupt.exit_code
            log.info("step %d is saved; the same command resumes there", self.step)
        else:
            log.info("%s", left.why)
        self._send_leave(left.why)
        for fn in self._on_leave:
            try:
                fn()
            except Exception:  # why: an error in the user's cleanup must not change the reason for leaving
                log.exception("on_leave(%r) raised", fn)

    def _report_exception(self, error: BaseException) -> None:
        """Report an exception in user code. Within an item its samples may be the cause (rule 20)."""
        text = "".join(traceback.format_exception_only(error)).strip()[:1000]
        loop, session = self._loop, self._session
        if session is None or loop is None or loop.is_warming_up:
            return
        part = loop.part.micro_batch if loop.part is not None else None
        if isinstance(error, SampleError):
            self._report_slots(error.micro_batch.step, error.slots, text)
        elif isinstance(error, WrongSamples | NonFiniteGradient):
            self._report_slots(error.step, loop.grid.filled(error.step), text)  # every member finds the same
        elif part is not None and isinstance(error, Exception) and not isinstance(error, PliantError):
            self._report_slots(part.step, part.slots, text)
        elif self._worker.agent is None:  # else the agent reports the exit status, which counts as a failure
            self._send_leave(f"user code raised {text}")

    def _report_slots(self, step: int, slots: tuple[int, ...], text: str) -> None:
        assert self._session is not None
        assert self._indices is not None
        named = slots[:REPORTED_SLOTS_MAX]
        samples = tuple(tuple(self._indices.of(step, slot).tolist()) for slot in named)
        self._session.feed(s.UserCodeRaised(step, named, samples, text))

    def _send_leave(self, why: str) -> None:
        if self._session is not None:
            self._session.leave(why)


class NoPeers:
    """The peers of a member in a world of one, which sends nothing."""

    def notify(self, generation: int, member: MemberId, kind: str, head: bytes) -> None:
        raise AssertionError(
            f"message {kind} ({len(head)} bytes) to {member} in generation {generation}, a world of one"
        )
