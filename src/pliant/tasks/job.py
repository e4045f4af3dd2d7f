"""A worker's membership in a task queue, from `pliant.tasks.join()` to the end of the `with` block."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pliant import settings
from pliant.client.addresses import local_address
from pliant.core.model.names import AgentId, MemberId
from pliant.core.tasks.decide import bad_task_terms
from pliant.core.tasks.messages import JoinTasks
from pliant.core.tasks.model import ShardKind, TaskTerms
from pliant.credentials import TlsFiles, read_token
from pliant.errors import BadInput
from pliant.ps.access import LocalRows, RowAccess, TableAccess
from pliant.ps.client import ServerRows
from pliant.ps.tables.spec import PushPolicy, Table, check_tables, table_terms
from pliant.tasks.growth import GrowthWatch, is_growing
from pliant.tasks.left import LeftQueue
from pliant.tasks.link import ShardLink
from pliant.tasks.means import Array
from pliant.tasks.pairs import (
    SAVE_EVERY_S,
    AveragedModel,
    Averaging,
    NoPartners,
    PairAveraging,
    averaged_model,
    model_terms,
)
from pliant.tasks.run import MapStyle, TaskData, TaskRun, check_data
from pliant.tasks.source import LocalQueue, ShardFeed
from pliant.train.checkpoint.storage import describe_other_owner, open_storage, owner_name
from pliant.train.coordinator_link import JobAlreadyEnded
from pliant.train.process import SigtermListener, log_to_stderr, process_age_s

if TYPE_CHECKING:
    from pliant.train.peer.tls import PeerTls

log = logging.getLogger(__name__)

AT_ONCE = PushPolicy()
ERROR_MAX = 1000  # characters of an exception that are reported


def join() -> TaskJob:
    """Return this worker's place in a task queue, for a `with` statement.

    The environment names the coordinator; `pliant run` sets it. Without one this worker does all shards alone.
    """
    log_to_stderr()
    found, worker = settings.read(), settings.read_worker()
    if found.coordinators and found.job is None:
        raise BadInput("PLIANT_COORDINATOR is set, but PLIANT_JOB is not. Set PLIANT_JOB to the name of the job.")
    if found.coordinators:
        settings.forget_launch()
    else:
        log.info("PLIANT_COORDINATOR is not set: this worker does all shards alone")
    return TaskJob(found, worker)


class TaskJob:
    """This worker's membership in a task queue. It ends with the `with` block."""

    def __init__(self, found: settings.Settings, worker: settings.WorkerSettings) -> None:
        self._settings, self._worker = found, worker
        host = socket.gethostname().split(".")[0].lower()
        self.name = found.job or "alone"
        self.member = MemberId(worker.member or f"{host}-{os.getpid()}-{secrets.token_hex(3)}")
        self._agent = AgentId(worker.agent or host)
        self._run: TaskRun | None = None
        self._closing: list[Callable[[], None]] = []

    def __enter__(self) -> TaskJob:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if isinstance(error, LeftQueue):
                log.info("%s", error.why)
            elif isinstance(error, Exception) and self._run is not None:
                self._run.report_exception("".join(traceback.format_exception_only(error)).strip()[:ERROR_MAX])
        finally:
            for close in reversed(self._closing):
                close()
            self._closing.clear()

    def train(
        self,
        data: TaskData,
        *,
        batch_size: int,
        records_per_shard: int,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        evaluation: MapStyle | None = None,
        evaluate_every: int = 0,
        deadline_s: float = 300.0,
        collate: Callable[[list[Any]], Any] | None = None,
        tables: Sequence[Table] = (),
        pushes: PushPolicy = AT_ONCE,
        average: AveragedModel | Sequence[Array] | None = None,
        save_every_s: float = SAVE_EVERY_S,
        extra: Mapping[str, str] | None = None,
    ) -> TaskRun:
        """Join the queue and return its run. Raises if a setting differs from that of the other members.

        A shard is `records_per_shard` records in a row, and belongs to one member at a time. `shuffle` shuffles the
        shards of each epoch by the seed; those of growing data come in the order of the records. `evaluation` is data
        whose shards come between those for training, every `evaluate_every` shards, and after each epoch by default. A
        shard without progress for `deadline_s` is given to another member. `collate` makes a batch of a list of
        records. `tables` are those of the parameter servers, and `pushes` decides what becomes of a push. `extra` has
        settings of the script that all members must have equal, by name; a queue goes on only with equal ones.

        `average` is the model of this worker, for pair averaging: call `run.average()` in each batch. The mean of all
        models is saved every `save_every_s`. At the end of the loop each worker's model is the last mean.
        """
        check_tables(tables, pushes)
        if pushes.by_step:
            raise BadInput(f"grads_to_wait must be 1 or more, got {pushes.grads_to_wait}.")
        model = None if average is None else averaged_model(average)
        if model is not None and (tables or not 0 < 2 * save_every_s <= deadline_s):
            raise BadInput("average= needs a save_every_s of at most half of deadline_s, and no tables")
        terms = TaskTerms(
            records=0 if is_growing(data) else check_data("data", data),
            records_per_shard=records_per_shard,
            epochs=epochs,
            seed=seed,
            shuffled=shuffle and not is_growing(data),
            growing=is_growing(data),
            evaluation_records=0 if evaluation is None else check_data("evaluation", evaluation),
            evaluate_every=evaluate_every,
            deadline_s=float(deadline_s),
            extra=(*table_terms(tables, pushes), *(model_terms(model) if model else ()), *_pairs(extra)),
            averages=model is not None,
        )
        sources: dict[ShardKind, TaskData] = (
            {ShardKind.TRAIN: data} if evaluation is None else {ShardKind.TRAIN: data, ShardKind.EVALUATE: evaluation}
        )
        return self._start(terms, sources, batch_size, collate, tables, pushes, model, save_every_s)

    def predict(
        self,
        data: TaskData,
        *,
        batch_size: int,
        records_per_shard: int,
        deadline_s: float = 300.0,
        collate: Callable[[list[Any]], Any] | None = None,
        tables: Sequence[Table] = (),
        extra: Mapping[str, str] | None = None,
    ) -> TaskRun:
        """Join the queue for one pass over the data, in which nothing is trained. `run.numbers` names the records.

        `extra` is as for `train`.
        """
        terms = TaskTerms(
            records=0 if is_growing(data) else check_data("data", data),
            records_per_shard=records_per_shard,
            shuffled=False,
            predicts=True,
            growing=is_growing(data),
            deadline_s=float(deadline_s),
            extra=(*table_terms(tables, PushPolicy()), *_pairs(extra)),
        )
        return self._start(terms, {ShardKind.PREDICT: data}, batch_size, collate, tables, PushPolicy())

    def evaluate(
        self,
        data: MapStyle,
        *,
        batch_size: int,
        records_per_shard: int,
        deadline_s: float = 300.0,
        collate: Callable[[list[Any]], Any] | None = None,
        tables: Sequence[Table] = (),
        extra: Mapping[str, str] | None = None,
    ) -> TaskRun:
        """Join the queue for one evaluation, and nothing else. Pass the totals over each batch to `run.add`.

        `extra` is as for `train`.
        """
        terms = TaskTerms(
            records=0,
            records_per_shard=records_per_shard,
            evaluation_records=check_data("data", data),
            deadline_s=float(deadline_s),
            extra=(*table_terms(tables, PushPolicy()), *_pairs(extra)),
        )
        return self._start(terms, {ShardKind.EVALUATE: data}, batch_size, collate, tables, PushPolicy())

    def _start(
        self,
        terms: TaskTerms,
        data: dict[ShardKind, TaskData],
        batch_size: int,
        collate: Callable[[list[Any]], Any] | None,
        tables: Sequence[Table],
        pushes: PushPolicy,
        model: AveragedModel | None = None,
        save_every_s: float = SAVE_EVERY_S,
    ) -> TaskRun:
        if self._run is not None:
            raise BadInput("a job has one run. Join another job for other data.")
        if wrong := bad_task_terms(terms):
            raise BadInput(wrong)
        if batch_size < 1:
            raise BadInput(f"batch_size must be 1 or more, got {batch_size}")
        source, averaging = self._connect(terms, model, save_every_s)
        access = self._open_tables(tables, pushes, source) if tables else None
        self._run = TaskRun(source, terms, data, batch_size, collate, access, averaging)
        if is_growing(grows := data[terms.wanted[0]]):
            self._closing.append(GrowthWatch(grows, source).close)
        return self._run

    def _open_tables(self, tables: Sequence[Table], pushes: PushPolicy, source: ShardFeed) -> TableAccess:
        rows: RowAccess = LocalRows(tables, pushes)
        if isinstance(source, ShardLink):
            rows = ServerRows(self.member, tables, pushes, source.layouts, source.check, self._peer_tls())
        self._closing.append(rows.close)
        return TableAccess(self.member, tables, pushes, rows)

    def _peer_tls(self) -> PeerTls | None:
        """Return the encryption of connections to parameter servers; None if no CA is configured."""
        if self._settings.ca_file is None:
            return None
        from pliant.train.peer.tls import PeerTls

        return PeerTls()

    def _connect(
        self, terms: TaskTerms, model: AveragedModel | None, save_every_s: float
    ) -> tuple[ShardFeed, Averaging | None]:
        found = self._settings
        if not found.coordinators:
            alone = replace(terms, averages=False)
            return LocalQueue(alone, self.member), None if model is None else NoPartners()
        token = read_token(found.token_file or found.own_token_file)
        tls = TlsFiles(found.ca_file, found.cert_file, found.key_file)
        link = ShardLink(found.coordinators, token, self.name, self.member, tls, terms.deadline_s)
        averaging = None if model is None else self._open_averaging(link, model, terms.seed, save_every_s)
        address = "" if averaging is None else averaging.address
        try:
            link.join(JoinTasks(self.member, self._agent, terms, os.getpid(), process_age_s(), address))
        except JobAlreadyEnded as late:
            raise LeftQueue(late.code, late.why) from late
        self._closing.append(link.close)
        if threading.current_thread() is threading.main_thread():
            self._closing.append(SigtermListener(lambda: link.leave("SIGTERM")).close)
        return link, averaging

    def _open_averaging(self, link: ShardLink, model: AveragedModel, seed: int, save_every_s: float) -> PairAveraging:
        where = self._worker.checkpoint_dir
        if where is None:
            raise BadInput("Pair averaging saves models. Set PLIANT_CHECKPOINT_DIR to a folder that all workers share.")
        storage, owner = open_storage(where), owner_name(link.job_created_at())
        if not (claimed := storage.claim(owner)).allows(owner):
            raise BadInput(describe_other_owner(storage.location, claimed))
        host = self._worker.address or local_address(self._settings.coordinators[0])
        averaging = PairAveraging(model, self.member, seed, storage, save_every_s, host, self._peer_tls())
        link.on_view, link.on_wake = averaging.follow, averaging.on_wake
        self._closing.append(averaging.close)
        averaging.start(link)
        return averaging


def _pairs(extra: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((extra or {}).items()))
