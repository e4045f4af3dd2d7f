"""A worker's membership in a job, from `pliant.torch.join()` to the end of the `with` block."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import nn

from pliant import settings
from pliant.client.addresses import local_address
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.hangs import user_code_limit_s
from pliant.core.job.launches import STUCK_CODE
from pliant.core.member import signals as s
from pliant.core.messages import Join
from pliant.core.model.job import Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World
from pliant.credentials import TlsFiles, read_token
from pliant.errors import BadInput, PliantError
from pliant.torch import arguments
from pliant.torch.checkpointing import MemberCheckpoints
from pliant.torch.data.loader import Loader
from pliant.torch.data.source import DataSource, open_source
from pliant.torch.determinism import DeterminismOptions
from pliant.torch.errors import Left, NonFiniteGradient, hide_own_frames
from pliant.torch.evaluate import BATCH_TOTALS, EvaluationResults
from pliant.torch.gloo.wiring import GlooWiring
from pliant.torch.group import choice
from pliant.torch.group.nccl_wiring import NcclWiring
from pliant.torch.join_terms import extra_terms, model_device
from pliant.torch.loop import Loop
from pliant.torch.replay import Replay
from pliant.torch.run import Run
from pliant.torch.state.buffers import Buffers
from pliant.torch.state.optimizers import Optimizers
from pliant.torch.state.state_hash import StateHash
from pliant.torch.state.training_state import Stateful, TrainingState
from pliant.train.adapter import GroupWiring
from pliant.train.checkpoint import open_storage, owner_name
from pliant.train.coordinator_link import JobAlreadyEnded, MemberLink
from pliant.train.data.loader import OrderOfEpoch, SampleError, SampleIndices, WrongSamples, check_micro_batch
from pliant.train.data.microbatches import MicroBatcher
from pliant.train.peer.kv import PeerValues
from pliant.train.peer.server import PeerLost, PeerServer
from pliant.train.process import InterruptHandler, SigtermListener, StallWatchdog, process_age_s
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.session import Session
from pliant.train.standalone import OWNER, SAVE_EVERY_S, StandaloneCoordinator
from pliant.train.state.flat import State
from pliant.train.state.state_lock import StateLock
from pliant.train.state.transfer import StateSource

if TYPE_CHECKING:
    from pliant.train.peer.tls import PeerTls

log = logging.getLogger(__name__)

STALL_S = 300.0
SAVING_MAX_S = 3600.0  # of the save after Ctrl-C; a second Ctrl-C ends it
STORE = "store"
REPORTED_SLOTS_MAX = 1024  # slots in the report of an exception


def join() -> TrainingJob:
    """Return this worker's job, for a `with` statement. Call it once.

    The environment names the coordinator; `pliant run` sets it. Without a coordinator this worker trains alone.
    """
    _configure_logging()
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
    elif torch.distributed.is_available() and torch.distributed.is_initialized():
        raise BadInput(
            "torch.distributed is initialized. pliant.join() connects the workers itself, and replacements get no RANK "
            "and WORLD_SIZE. Remove init_process_group, or run the script without pliant.join()."
        )
    else:
        settings.forget_launch()
    _close_open_job(alone=not found.coordinators)
    return TrainingJob(found, worker)


def _close_open_job(*, alone: bool) -> None:
    """Close a job that an earlier call left open: a notebook's cell without `with` that runs again."""
    if (job := TrainingJob.open) is None:
        return
    if not alone:
        raise BadInput(
            "pliant.join() was called while this process trains already. Use `with pliant.join() as job:`, and call it "
            "once."
        )
    log.info("the run before is closed at step %d; use `with pliant.join() as job:` to close it in time", job.step)
    job.__exit__(None, None, None)


def device() -> torch.device:
    """Return the device for this worker's model: its GPU, else the CPU. Call it before you build the model."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    chosen = torch.device("cuda", settings.read_worker().local_rank % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen


class TrainingJob:
    """This worker's membership in a job. It ends with the `with` block."""

    open: ClassVar[TrainingJob | None] = None  # the job that trains in this process

    def __init__(self, found: settings.Settings, worker: settings.WorkerSettings) -> None:
        self._settings = found
        self._worker = worker
        self.name = found.job or "alone"
        host = socket.gethostname().split(".")[0].lower()
        agent = worker.agent or host
        self.member = MemberId(worker.member or f"{host}-{os.getpid()}-{secrets.token_hex(3)}")
        self._agent = AgentId(agent)
        self._run: Run | None = None
        self._loop: Loop | None = None
        self._session: Session | None = None
        self._indices: SampleIndices | None = None
        self._peers: PeerServer | None = None
        self._peer_values = PeerValues()
        self._results = EvaluationResults()
        self._host = "127.0.0.1"
        self._device = torch.device("cpu")
        self._collectives = choice.GLOO
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

    def __enter__(self) -> TrainingJob:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if isinstance(error, Left):
                self._leave(error)
            elif error is not None:
                self._report_exception(error)
            elif self._run is not None and self._loop is not None and not self._run.complete:
                self._loop.leave()
                self._run.complete = True
        finally:
            if self._run is not None:
                self._run._close_log()
            for close in reversed(self._closing):
                close()
            self._closing.clear()
            TrainingJob.open = None

    def total_steps(self, samples: Any, *, batch_size: int, epochs: int = 1, turns: int = 1) -> int:
        """Return the number of steps that `train` takes with these arguments, for a scheduler that is built before.

        `samples` is the data set, the sampler, or the number of samples of an epoch. `turns` is the number of
        optimizers that take turns.
        """
        samples, batch_size, epochs, turns = arguments.whole_numbers(
            samples=len(samples) if hasattr(samples, "__len__") else samples,
            batch_size=batch_size,
            epochs=epochs,
            turns=turns,
        )
        return Grid(samples, batch_size, 1, epochs, turns).total_steps

    def train(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer] | Mapping[str, torch.optim.Optimizer],
        dataset: Any,
        *,
        batch_size: int,
        epochs: int = 1,
        max_steps: int | None = None,
        seed: int = 0,
        slots: int | None = None,
        micro_batch: int | None = None,
        order: str | OrderOfEpoch = "shuffled",
        sampler: Iterable[int] | None = None,
        samples_per_epoch: int | None = None,
        state: Mapping[str, Stateful] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        clip_norm: float | None = None,
        nonfinite: Literal["raise", "skip", "ignore"] = "raise",
        collectives: Literal["nccl", "gloo"] | None = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        stall_s: float = STALL_S,
        deterministic: bool = False,
        other_bits: bool = False,
        verify: int = 0,
        verify_slots: float = 0.0,
    ) -> Run:
        """Join the job and return its run. Raises if a setting differs from that of the other members.

        `batch_size` is global, whatever the number of members. `slots` is the number of pieces it is divided into, by
        default one for each sample; members beyond that number are spares. `micro_batch` limits the samples of an item,
        `max_steps` the length of the job. `state` names other objects that move with the model.

        With `deterministic` an item is one slot, and the result has the same bits whatever happens to the membership. A
        member whose software or hardware would compute other bits stays a spare, unless `other_bits` allows it. With
        `verify=N` members compare hashes of their whole state every N steps, and a member that differs is evicted. With
        `verify_slots=R` a second member computes that fraction of the slots and compares the gradients.
        """
        self._open_once()
        batch_size, epochs, seed, num_workers, verify = arguments.whole_numbers(
            batch_size=batch_size, epochs=epochs, seed=seed, num_workers=num_workers, verify=verify
        )
        slots, micro_batch, per_epoch, max_steps = arguments.optional_whole_numbers(
            slots=slots, micro_batch=micro_batch, samples_per_epoch=samples_per_epoch, max_steps=max_steps
        )
        arguments.check(model, slots, batch_size, clip_norm, nonfinite, collate_fn, stall_s, verify_slots)
        arguments.check_flags(pin_memory=pin_memory, deterministic=deterministic, other_bits=other_bits)
        others = arguments.check_state(state, scaler)
        self._checkpoint_dir = arguments.check_folder(checkpoint_dir)
        source = open_source(dataset, order=order, sampler=sampler, samples_per_epoch=per_epoch, seed=seed)
        options = DeterminismOptions(seed, deterministic, other_bits, verify, verify_slots)
        bare, where = self._place(model, collectives)
        optimizers = Optimizers(bare, optimizer, scaler, clip_norm, nonfinite)
        self._closing.append(optimizers.close)
        grid = Grid(source.samples, batch_size, slots or batch_size, epochs, len(optimizers.turns) or 1, max_steps)
        check_micro_batch(grid, micro_batch)
        indices = self._indices = source.indices(grid, seed)
        step = self._optimizer_step(options, optimizers, where, compiled=bare is not model)
        how = {"seed": seed, "collate_fn": collate_fn, "num_workers": num_workers, "pin_memory": pin_memory}
        loader = self._open_loader(source, indices, how, where)
        training_state = TrainingState(bare, optimizers.all, Buffers(bare), others)
        training_state.capture()  # find a state that cannot be sent now, not when a member joins
        terms = self._terms(grid, options, extra_terms(bare, optimizers, indices, others))
        parts = MicroBatcher(grid, micro_batch, one_slot=deterministic)
        self._loop = self._assemble(terms, bare, training_state, loader, step, optimizers.can_step, options, parts)
        self._start(Join(self.member, self._agent, terms, fingerprint=options.fingerprint(where)), stall_s)
        self._run = Run(self._loop, model, optimizers, others.values(), self._results, self._send_batch_totals, where)
        return self._run

    # -------------------------------------------------------------------------------------------- assembly

    def _open_once(self) -> None:
        if self._session is not None:
            raise BadInput("job.train was called twice. A job trains one model: join another job for another model.")
        TrainingJob.open = self

    def _place(self, model: nn.Module, collectives: str | None) -> tuple[nn.Module, torch.device]:
        """Return the model without wrappers and its device, and choose the library that reduces its gradients."""
        bare, self._device = _bare_model(model)
        worker = self._worker
        self._collectives = choice.choose(
            collectives, self._device, local_rank=worker.local_rank, may_share_gpu=worker.may_share_gpu
        )
        return bare, self._device

    def _open_loader(
        self, source: DataSource, indices: SampleIndices, how: dict[str, Any], device: torch.device
    ) -> Loader:
        """Start to load, before any thread and any socket: a forked data worker would hold them open."""
        loader = source.loader(indices, **how, device=device)
        loader.start()
        self._closing.append(loader.close)
        return loader

    def _terms(self, grid: Grid, options: DeterminismOptions, extra: tuple[tuple[str, str], ...]) -> Terms:
        snapshots = options.snapshot_every if self._settings.coordinators else 0  # alone, no member can differ
        library = (("collectives", choice.NCCL),) if self._collectives == choice.NCCL else ()
        return Terms(grid, options.seed, snapshots, (*extra, *library, *options.terms), options.verify)

    def _optimizer_step(
        self, options: DeterminismOptions, optimizers: Optimizers, device: torch.device, *, compiled: bool
    ) -> Callable[[], None]:
        """Return the function that steps the optimizers. In deterministic training it refuses changed settings."""
        deterministic = options.apply(optimizers, device, compiled=compiled)
        if deterministic is None:
            return optimizers.step
        self._closing.append(deterministic.close)
        return deterministic.guard(optimizers.step)

    def _assemble(
        self,
        terms: Terms,
        model: nn.Module,
        state: TrainingState,
        loader: Loader,
        step: Callable[[], None],
        can_step: Callable[[int], bool],
        options: DeterminismOptions,
        parts: MicroBatcher,
    ) -> Loop:
        """Build the training loop and everything that it uses; nothing is started yet."""
        assert self._indices is not None
        state_lock, logged, device = StateLock(), StepMetrics(), model_device(model)
        reducer = options.reducer(model, state.buffers, logged, device, terms.grid)
        self._closing.append(reducer.close)
        checkpoints = self._checkpoints(state, terms.grid, goes_back=options.verify > 0)
        session = self._connect(terms, state_lock, state, checkpoints)
        hashes = StateHash(state, options.verify)
        tools = (state, reducer, loader, state_lock, step, can_step, checkpoints, logged, parts, hashes)
        expected, checks = self._indices.expected, options.checks
        loop = Loop(session, *tools, expected=expected, checks=checks, seed=terms.seed, device=device)
        if (file := self._worker.replay_file) is not None:
            loop.replay = Replay(self._worker.replay_to or 0, file, terms, options.fingerprint(device), hashes)
        return loop

    def _checkpoints(self, state: TrainingState, grid: Grid, *, goes_back: bool) -> MemberCheckpoints:
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
        self, terms: Terms, state_lock: StateLock, state: TrainingState, checkpoints: MemberCheckpoints
    ) -> Session:
        link = self._open_link(checkpoints)
        if self._settings.coordinators:
            source = StateSource(state_lock, state.capture, self._gradient, self._lines)
            self._peers = PeerServer(
                self._host,
                self.member,
                self._receive,
                lambda _g, _asker, kind, head: source.answer(kind, head),
                self._peer_tls(),
            )
        collect_garbage = checkpoints.collect_garbage if checkpoints.can_save else None
        session = Session(self.member, terms, link, self._peers, self._make_wiring, self._forget, collect_garbage)
        self._session = session
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

    def _make_wiring(self, world: World, key: str) -> GroupWiring:
        peers = self._peers or _NoPeers()
        if self._collectives == choice.NCCL:
            return NcclWiring(world, key, self.member, peers, self._peer_values, self._device)
        return GlooWiring(world, key, self.member, peers, self._peer_values, self._host)

    def _forget(self, below: int) -> None:
        """Drop what belongs to generations below a number."""
        self._peer_values.forget_below(below)
        if self._peers is not None:
            self._peers.forget_below(below)

    # ------------------------------------------------------------------------------------- start and end

    def _start(self, join: Join, stall_s: float) -> None:
        session = self._session
        assert session is not None
        address = self._peers.address if self._peers is not None else ""
        try:
            session.start(replace(join, address=address, pid=os.getpid(), age_s=process_age_s()))
        except JobAlreadyEnded as late:
            raise Left(late.code, late.why) from late
        self._handle_sigterm(session)
        end = partial(os._exit, STUCK_CODE) if self._settings.coordinators else None
        watchdog = StallWatchdog(self.member, lambda: self._user_code_limit_s(stall_s), self._busy_since, end)
        self._closing.append(watchdog.close)

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
        if session is None or loop is None:
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


class _NoPeers:
    """The peers of a member in a world of one, which sends nothing."""

    def notify(self, generation: int, member: MemberId, kind: str, head: bytes) -> None:
        raise AssertionError(
            f"message {kind} ({len(head)} bytes) to {member} in generation {generation}, a world of one"
        )


def _bare_model(model: nn.Module) -> tuple[nn.Module, torch.device]:
    """Return the model without the wrapper of torch.compile, and its device."""
    bare: nn.Module = getattr(model, "_orig_mod", model)
    return bare, model_device(bare)


def _configure_logging() -> None:
    """Print Pliant's log to stderr unless the script configures logging itself."""
    ours = logging.getLogger("pliant")
    if not ours.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("pliant: %(message)s"))
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)
        ours.propagate = False
