"""A worker's membership in a job, from `pliant.join()` to the end of the `with` block."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import nn

from pliant import settings
from pliant.client.addresses import local_address
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.member import signals as s
from pliant.core.messages import Join
from pliant.core.model.job import Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World
from pliant.credentials import read_token
from pliant.errors import BadInput, PliantError
from pliant.torch.checkpointing import MemberCheckpoints
from pliant.torch.data.dataset import check_dataset
from pliant.torch.data.loader import Loader
from pliant.torch.determinism import DeterminismOptions
from pliant.torch.errors import Left
from pliant.torch.evaluate import BATCH_TOTALS, EvaluationResults
from pliant.torch.gloo.wiring import GlooWiring
from pliant.torch.join_terms import extra_terms, model_device, other_state
from pliant.torch.loop import Loop
from pliant.torch.replay import Replay
from pliant.torch.run import Run
from pliant.torch.state.buffers import Buffers
from pliant.torch.state.optimizers import Optimizers
from pliant.torch.state.state_hash import StateHash
from pliant.torch.state.training_state import Stateful, TrainingState
from pliant.train.checkpoint import open_storage
from pliant.train.coordinator_link import CoordinatorLink, JobAlreadyEnded
from pliant.train.data.loader import OrderOfEpoch, SampleError, SampleIndices, WrongSamples, check_micro_batch
from pliant.train.data.microbatches import MicroBatcher
from pliant.train.peer.kv import PeerValues
from pliant.train.peer.server import PeerLost, PeerServer
from pliant.train.process import SigtermListener, StallWatchdog, process_age_s
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.session import Session
from pliant.train.standalone import StandaloneCoordinator
from pliant.train.state.flat import State
from pliant.train.state.state_lock import StateLock
from pliant.train.state.transfer import StateSource

log = logging.getLogger(__name__)

STALL_S = 300.0
STORE = "store"
NAMED_MAX = 1024  # slots that are named when one of them raised


def join() -> TrainingJob:
    """Call once, with `with`: the coordinator comes from the environment; without one this worker trains alone."""
    _configure_logging()
    said, worker = settings.read(), settings.read_worker()
    if not said.coordinators:
        if worker.world_size > 1:
            raise BadInput(
                f"WORLD_SIZE is {worker.world_size}, but PLIANT_COORDINATOR is not set: start the workers with "
                "`pliant run`, or set PLIANT_COORDINATOR, PLIANT_JOB and PLIANT_TOKEN_FILE."
            )
        log.info("no coordinator in the environment (PLIANT_COORDINATOR): training alone, a world of one")
    elif said.job is None:
        raise BadInput("PLIANT_COORDINATOR is set, but PLIANT_JOB is not: say which job this worker is for.")
    return TrainingJob(said, worker)


def device() -> torch.device:
    """Where this worker's model belongs: its GPU if there is one. Call it before the model is built."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    chosen = torch.device("cuda", settings.read_worker().local_rank % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen


class TrainingJob:
    """This worker's place in a job. Leaving the `with` block gives it up, whatever the reason."""

    def __init__(self, said: settings.Settings, worker: settings.WorkerSettings) -> None:
        self._said = said
        self._worker = worker
        self.name = said.job or "alone"
        host = socket.gethostname().split(".")[0].lower()
        agent = worker.agent or host
        self.member = MemberId(worker.member or f"{host}-{os.getpid()}-{secrets.token_hex(3)}")
        self._agent = AgentId(agent)
        self._run: Run | None = None
        self._loop: Loop | None = None
        self._session: Session | None = None
        self._indices: SampleIndices | None = None
        self._peers: PeerServer | None = None
        self._closing: list[Callable[[], None]] = []
        self._on_leave: list[Callable[[], None]] = []

    def on_leave(self, fn: Callable[[], None]) -> None:
        """Have `fn()` called when this member leaves before training is complete."""
        self._on_leave.append(fn)

    def __enter__(self) -> TrainingJob:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if isinstance(error, Left):
                self._leave(error)
            elif error is not None:
                self._say_what_was_raised(error)
            elif self._run is not None and not self._run.complete:
                self._goodbye("the training loop was left before its end")
        finally:
            for close in reversed(self._closing):
                close()
            self._closing.clear()

    def train(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer],
        dataset: Any,
        *,
        batch_size: int,
        epochs: int = 1,
        seed: int = 0,
        slots: int | None = None,
        micro_batch: int | None = None,
        order: str | OrderOfEpoch = "shuffled",
        state: Mapping[str, Stateful] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        clip_norm: float | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        stall_s: float = STALL_S,
        deterministic: bool = False,
        other_bits: bool = False,
        verify: int = 0,
        verify_slots: float = 0.0,
    ) -> Run:
        """Become a member and train. Everything that must be equal on all members is checked before this returns.

        `batch_size` is global and stays the same whatever the number of members. `slots` is the number of pieces it is
        dealt out in (by default one for each sample; members beyond it are spares). `micro_batch` caps what is yielded
        at once. `state` names whatever else must move with the model: schedulers, averages.

        `deterministic` yields one slot at a time and gives the same bits whatever the membership did; a member whose
        software or hardware would give others is a spare, unless `other_bits` allows it. With `verify=N` members
        compare hashes of their whole state every N steps, and one that differs is evicted; with `verify_slots=R` that
        fraction of slots is computed by a second member and compared.
        """
        if self._session is not None:
            raise BadInput("job.train was called before: a job trains one model; join another job for another.")
        if not hasattr(dataset, "__len__"):
            check_dataset(dataset, 0)
        exactness = DeterminismOptions(seed, deterministic, other_bits, verify, verify_slots)
        grid = Grid(len(dataset), batch_size, batch_size if slots is None else slots, epochs)
        check_micro_batch(grid, micro_batch)
        indices = self._indices = SampleIndices(grid, seed=seed, order=order)
        bare: nn.Module = getattr(model, "_orig_mod", model)  # what torch.compile wrapped
        where = model_device(bare)
        optimizers = Optimizers(bare, optimizer, scaler, clip_norm)
        self._closing.append(optimizers.close)
        step = self._pinned(exactness, optimizers, where, compiled=bare is not model)
        others = other_state(state, scaler)
        how = {"seed": seed, "collate_fn": collate_fn, "num_workers": num_workers, "pin_memory": pin_memory}
        loader = Loader(dataset, indices, grid, **how, device=where)  # type: ignore[arg-type]  # each as declared
        loader.start()  # before any thread and any socket: what is forked must not hold them open (H20)
        self._closing.append(loader.close)
        training_state = TrainingState(bare, optimizers.all, Buffers(bare), others)
        training_state.capture()  # what cannot be sent is found now, not when somebody joins
        snapshots = exactness.snapshot_every if self._said.coordinators else 0  # alone there is nobody to differ from
        terms = Terms(
            grid, seed, snapshots, (*extra_terms(bare, optimizers, indices, others), *exactness.terms), verify
        )
        board = EvaluationResults()
        parts = MicroBatcher(grid, micro_batch, one_slot=deterministic)
        self._loop = self._assembled(terms, bare, training_state, loader, board, step, exactness, parts)
        join = Join(self.member, self._agent, terms, fingerprint=exactness.fingerprint(where))
        self._start(self._loop.session, join, stall_s)
        self._run = Run(self._loop, model, optimizers, board, self._tell_sums, where)
        return self._run

    # ---------------------------------------------------------------------------------------------- inside

    def _pinned(
        self, exactness: DeterminismOptions, optimizers: Optimizers, device: torch.device, *, compiled: bool
    ) -> Callable[[], None]:
        """What steps the optimizers, and refuses to if the bits would be others."""
        pinned = exactness.apply(optimizers, device, compiled=compiled)
        if pinned is None:
            return optimizers.step
        self._closing.append(pinned.close)
        return pinned.guard(optimizers.step)

    def _assembled(
        self,
        terms: Terms,
        model: nn.Module,
        state: TrainingState,
        loader: Loader,
        board: EvaluationResults,
        step: Callable[[], None],
        exactness: DeterminismOptions,
        parts: MicroBatcher,
    ) -> Loop:
        """Everything that runs a training loop, put together; not started yet."""
        assert self._indices is not None
        gate, logged, device = StateLock(), StepMetrics(), model_device(model)
        reducer = exactness.reducer(model, state.buffers, logged, device, terms.grid)
        self._closing.append(reducer.close)
        shelf = self._shelf(state, terms.grid, goes_back=exactness.verify > 0)
        session = self._connect(terms, gate, state, board, shelf)
        hashes = StateHash(state, exactness.verify)
        tools = (state, reducer, loader, gate, step, shelf, logged, parts, hashes)
        expected, checks = self._indices.expected, exactness.checks
        loop = Loop(session, *tools, expected=expected, checks=checks, seed=terms.seed, device=device)
        if (file := self._worker.replay_file) is not None:
            loop.replay = Replay(self._worker.replay_to or 0, file, terms, exactness.fingerprint(device), hashes)
        return loop

    def _shelf(self, state: TrainingState, grid: Grid, *, goes_back: bool) -> MemberCheckpoints:
        where = self._worker.checkpoint_dir if self._said.coordinators else None
        place = open_storage(where) if where is not None else None
        shelf = MemberCheckpoints(state, place, self.name, self.member, grid, goes_back=goes_back)
        self._closing.append(shelf.close)
        return shelf

    def _connect(
        self, terms: Terms, gate: StateLock, state: TrainingState, board: EvaluationResults, shelf: MemberCheckpoints
    ) -> Session:
        mailbox = PeerValues()
        if not self._said.coordinators:
            contact: CoordinatorLink | StandaloneCoordinator = StandaloneCoordinator(self.name, self.member)
            host = "127.0.0.1"
        else:
            token = read_token(self._said.token_file or self._said.own_token_file)
            contact = CoordinatorLink(self._said.coordinators, token, self.name, self.member)
            try:
                shelf.claim_storage(contact.job_created_at)
            except PliantError:
                contact.close()
                raise
            host = self._worker.address or local_address(self._said.coordinators[0])
        source = StateSource(gate, state.capture, self._gradient, self._lines)

        def hear(generation: int, _sender: MemberId, kind: str, head: bytes) -> None:
            if kind == STORE:
                mailbox.receive(generation, head)
            elif kind == BATCH_TOTALS:
                board.receive(head)
            else:
                session.heard(generation, kind, head)

        if self._said.coordinators:
            self._peers = PeerServer(host, self.member, hear, lambda _g, _asker, kind, head: source.answer(kind, head))
        peers = self._peers

        def wire(world: World, key: str) -> GlooWiring:
            return GlooWiring(world, key, self.member, peers or _NoPeers(), mailbox, host)

        def forget(below: int) -> None:
            mailbox.forget_below(below)
            if peers is not None:
                peers.forget_below(below)

        tidy = shelf.collect_garbage if shelf.can_save else None
        session = self._session = Session(self.member, terms, contact, peers, wire, forget, tidy)
        shelf.feed = session.feed
        self._closing.append(session.close)
        self._closing.append(gate.close)
        return session

    def _start(self, session: Session, join: Join, stall_s: float) -> None:
        address = self._peers.address if self._peers is not None else ""
        try:
            session.start(replace(join, address=address, pid=os.getpid(), age_s=process_age_s()))
        except JobAlreadyEnded as late:
            raise Left(late.code, late.why) from late
        self._listen_for_notices(session)
        self._closing.append(StallWatchdog(self.member, stall_s, self._busy_since).close)

    def _gradient(self, lineage: Lineage) -> State | None:
        return self._loop.gradient(lineage) if self._loop is not None else None

    def _lines(self) -> tuple[LedgerLine, ...]:
        return self._session.lines() if self._session is not None else ()

    def _busy_since(self) -> float | None:
        return self._loop.in_user_code_since if self._loop is not None else None

    def _tell_sums(self, head: bytes) -> None:
        session = self._session
        if self._peers is not None and session is not None and session.machine.world is not None:
            world = session.machine.world
            for member in world.members:
                if member != self.member:
                    with suppress(PeerLost):  # then it computes them itself
                        self._peers.notify(world.number, member, BATCH_TOTALS, head)

    def _listen_for_notices(self, session: Session) -> None:
        if self._said.coordinators and threading.current_thread() is threading.main_thread():
            grace_s = self._worker.grace_s
            notice = SigtermListener(lambda: session.feed(s.DrainNotice(grace_s, "SIGTERM")))
            self._closing.append(notice.close)

    def _leave(self, left: Left) -> None:
        log.info("left: %s", left.why)
        self._goodbye(left.why)
        for fn in self._on_leave:
            try:
                fn()
            except Exception:  # why: what the user cleans up must not change why and how this member left
                log.exception("on_leave(%r) raised", fn)

    def _say_what_was_raised(self, error: BaseException) -> None:
        """An exception in user code is this member's failure; in a part, it may be the samples' (rule 20)."""
        said = "".join(traceback.format_exception_only(error)).strip()[:1000]
        loop, session = self._loop, self._session
        if session is None or loop is None:
            return
        part = loop.part.micro_batch if loop.part is not None else None
        if isinstance(error, SampleError):
            self._raised(error.micro_batch.step, error.slots, said)
        elif isinstance(error, WrongSamples):
            self._raised(error.step, loop.grid.filled(error.step), said)  # on every member alike
        elif part is not None and isinstance(error, Exception) and not isinstance(error, PliantError):
            self._raised(part.step, part.slots, said)
        elif self._worker.agent is None:  # else the agent sees the exit status, which counts as a failure
            self._goodbye(f"its code raised {said}")

    def _raised(self, step: int, slots: tuple[int, ...], said: str) -> None:
        assert self._session is not None
        assert self._indices is not None
        named = slots[:NAMED_MAX]
        samples = tuple(tuple(self._indices.of(step, slot).tolist()) for slot in named)
        self._session.feed(s.UserCodeRaised(step, named, samples, said))

    def _goodbye(self, why: str) -> None:
        if self._session is not None:
            self._session.goodbye(why)


class _NoPeers:
    """The peers of a member that is alone."""

    def notify(self, generation: int, member: MemberId, kind: str, head: bytes) -> None:
        raise AssertionError(f"{member} is told {kind} ({len(head)} bytes) in {generation}, a world of one")


def _configure_logging() -> None:
    """Show what Pliant says if the script does not configure logging itself."""
    ours = logging.getLogger("pliant")
    if not ours.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("pliant: %(message)s"))
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)
        ours.propagate = False
