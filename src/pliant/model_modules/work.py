"""The work of a worker of `pliant train`, `pliant evaluate` and `pliant predict`, and the check before any starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pliant.tasks
from pliant.core.tasks.model import ShardKind
from pliant.errors import BadInput
from pliant.model_modules.contract import describe, load
from pliant.model_modules.facts import content_of, described
from pliant.model_modules.predictions import PredictionFolder
from pliant.ps import PushPolicy, Table
from pliant.ps.access import ArrayLike, LocalRows, TableAccess
from pliant.ps.gradients import Floats, TableRun
from pliant.ps.saving import SavedTables, newest_set
from pliant.ps.tables.optimizers import RowOptimizer
from pliant.records import open_records

log = logging.getLogger(__name__)

PROGRESS_S = 10.0
CHECKED_RECORDS = 2


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """The options that every worker of a command has equal."""

    command: str  # train, evaluate or predict
    model_def: str
    data: str
    format: str | None = None
    validation_data: str | None = None
    epochs: int = 1
    batch_size: int = 64
    records_per_task: int = 4096
    evaluate_every: int = 0
    model: str | None = None  # the storage of saved tables
    saved: str | None = None  # the first part of the newest ones, as the check found it
    output: str | None = None


class ModelSteps(Protocol):
    """A model of some framework, with its steps over batches of `count` records."""

    def tables(self, optimizer: RowOptimizer) -> list[Table]: ...
    def bind(self, run: TableRun) -> None: ...
    def train(self, features: Any, labels: Any, count: int) -> float: ...
    def evaluate(self, features: Any, labels: Any, count: int) -> dict[str, float]: ...
    def predict(self, features: Any, count: int) -> list[Any]: ...


class LateTables:
    """The tables of a run that begins later, for models that are built before it."""

    def __init__(self) -> None:
        self._run: TableRun | None = None

    def begin(self, run: TableRun) -> None:
        self._run = run

    def pull(self, table: str, ids: ArrayLike) -> Floats:
        return self._begun().pull(table, ids)

    def push(self, gradients: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> bool:
        return self._begun().push(gradients)

    def create(self, table: str, ids: ArrayLike, values: ArrayLike) -> None:
        self._begun().create(table, ids, values)

    def _begun(self) -> TableRun:
        if self._run is None:
            raise BadInput("custom_model(run) cannot use tables yet. Use `run` in the forward pass only.")
        return self._run


class LoadedWork:
    """A loaded model module with its data."""

    def __init__(self, options: WorkOptions) -> None:
        self.options = options
        self.module = load(options.model_def)
        self.data = self._open("--data", options.data)
        source = options.validation_data
        self.validation = None if source is None else self._open("--validation-data", source)
        self.late = LateTables()
        if not len(self.data):
            raise BadInput(f"--data {options.data} has no records.")
        self.steps = self._steps_of(self.module.build_model(self.late))
        self.tables = [*self.module.tables, *self.steps.tables(self.module.optimizer)]

    def _open(self, flag: str, source: str) -> Any:
        if self.module.read_data is None:
            return open_records(source, self.options.format)
        found = self.module.read_data(source)
        if not (hasattr(found, "__len__") and hasattr(found, "__getitem__")):
            raise BadInput(
                f"{self.module.name}: custom_data_reader({source!r}) of {flag} must return data with a length and "
                f"records by number, got {describe(found)}."
            )
        return found

    def _steps_of(self, model: Any) -> ModelSteps:
        """Return the steps of the framework that the model is made of."""
        kinds = {f"{each.__module__}.{each.__name__}" for each in type(model).__mro__}
        module = self.module
        if "keras.src.models.model.Model" in kinds:  # on PyTorch, it is a torch.nn.Module as well
            from pliant.keras.module_steps import KerasSteps

            return KerasSteps(module.name, model, module.loss, module.metrics, self._sample)
        if "torch.nn.modules.module.Module" in kinds:
            from pliant.torch.module_steps import TorchSteps

            return TorchSteps(module.name, model, module.loss, module.metrics)
        raise BadInput(
            f"{module.name}: custom_model() must return a torch.nn.Module or a keras.Model, got {describe(model)}."
        )

    def bind(self, run: TableRun) -> None:
        """Let the model use the tables of a run."""
        self.late.begin(run)
        self.steps.bind(run)

    def bind_saved(self) -> SavedTables:
        """Let the model use its saved tables, and return them."""
        where = self.options.model or ""
        first = self.options.saved or newest_set(where)
        saved = SavedTables(where, first)
        known = {table.name for table in saved.tables}
        if missing := [table.name for table in self.tables if table.name not in known]:
            raise BadInput(
                f"{where} has no table {', '.join(missing)}: the model or the tables() of {self.module.name} are not "
                "those that it was saved with, or its frozen parameters or buffers have other values each time. Pass "
                "the module of that training, and set a seed in custom_model(), as by torch.manual_seed."
            )
        self.bind(saved)
        return saved

    def facts(self, saved: SavedTables | None = None) -> dict[str, str]:
        """Return what all workers must have equal, and a command that continues a job as well."""
        found = {"data": described(self.options.data, content_of(self.data))}
        if self.validation is not None:
            found["validation"] = described(self.options.validation_data or "", content_of(self.validation))
        if saved is not None:
            found["module"] = described(self.module.name, self.module.source)
            found["model"] = described(saved.name, saved.content)
        return found

    def claim(self, saved: SavedTables) -> str:
        """Begin or continue the output of a prediction. Return its id."""
        sizes = {"records": len(self.data), "records_per_task": self.options.records_per_task}
        return PredictionFolder(self.options.output or "").claim({**self.facts(saved), **sizes})

    def _sample(self) -> Any:
        return self.features([self.data[0]])

    def features(self, records: list[Any]) -> Any:
        return self.module.feed(records, ShardKind.PREDICT.value)


def check(options: WorkOptions) -> dict[str, Any]:
    """Load everything and compute with a few records. Raises BadInput with what does not fit together.

    Returns the facts that all workers share. The positions of records are found here, once for all workers.
    """
    work = LoadedWork(options)
    records = [work.data[number] for number in range(min(CHECKED_RECORDS, len(work.data)))]
    saved = None
    if options.command == "train":
        work.bind(TableAccess("check", work.tables, PushPolicy(), LocalRows(work.tables, PushPolicy())))
    else:
        saved = work.bind_saved()
    if options.command == "predict" and saved is not None:
        work.steps.predict(work.features(records), len(records))
        work.claim(saved)
    else:
        work.steps.evaluate(*work.module.labelled(records, options.command), len(records))
    work.facts(saved)
    return {"records": len(work.data), "saved": saved and saved.name}


def train(options: WorkOptions) -> None:
    """Take shards and train on them, and evaluate between them."""
    work, progress = LoadedWork(options), WorkLog("trained", time.monotonic)
    with pliant.tasks.join() as job:
        run = job.train(
            work.data,
            batch_size=options.batch_size,
            records_per_shard=options.records_per_task,
            epochs=options.epochs,
            evaluation=work.validation,
            evaluate_every=options.evaluate_every,
            tables=work.tables,
            extra=work.facts(),
        )
        work.bind(run)
        for records in run:
            features, labels = work.module.labelled(records, run.kind.value)
            if run.evaluating:
                run.add(**work.steps.evaluate(features, labels, len(records)))
            else:
                progress.add(len(records), work.steps.train(features, labels, len(records)))
        progress.end()


def evaluate(options: WorkOptions) -> None:
    """Take shards and evaluate a saved model on them."""
    work, progress = LoadedWork(options), WorkLog("evaluated", time.monotonic)
    with pliant.tasks.join() as job:
        extra = work.facts(work.bind_saved())
        size, shard = options.batch_size, options.records_per_task
        run = job.evaluate(work.data, batch_size=size, records_per_shard=shard, extra=extra)
        for records in run:
            sums = work.steps.evaluate(*work.module.labelled(records, run.kind.value), len(records))
            run.add(**sums)
            progress.add(len(records), sums["loss"] / len(records))
        progress.end()


def predict(options: WorkOptions) -> None:
    """Take shards, and write the predictions of each as a whole: a shard is one batch of the queue."""
    work, progress = LoadedWork(options), WorkLog("predicted", time.monotonic)
    folder, size = PredictionFolder(options.output or ""), options.batch_size
    with pliant.tasks.join() as job:
        shard, saved = options.records_per_task, work.bind_saved()
        extra = work.facts(saved) | {"output": work.claim(saved)}
        run = job.predict(work.data, batch_size=shard, records_per_shard=shard, extra=extra)
        for records in run:
            found: list[Any] = []
            for start in range(0, len(records), size):
                batch = records[start : start + size]
                found += work.steps.predict(work.features(batch), len(batch))
                progress.add(len(batch))
            folder.write(run.numbers.start, found)
        progress.end()


COMMANDS: Mapping[str, Callable[[WorkOptions], None]] = {"train": train, "evaluate": evaluate, "predict": predict}


class WorkLog:
    """Log what this worker has done, at most every ten seconds and at the end."""

    def __init__(self, what: str, now: Callable[[], float]) -> None:
        self._what, self._now = what, now
        self._said_at = self._began_at = now()
        self._records = self._scored = 0
        self._loss = 0.0

    def add(self, records: int, loss: float | None = None) -> None:
        """Count a batch with its mean loss."""
        self._records += records
        if loss is not None:
            self._scored += records
            self._loss += loss * records
        if self._now() - self._said_at >= PROGRESS_S:
            self._say()

    def end(self) -> None:
        """Log the rest."""
        self._say()

    def _say(self) -> None:
        now = self._now()
        rate = self._records / max(now - self._began_at, 1e-9)
        mean = f", loss {self._loss / self._scored:.4f} since the last line" if self._scored else ""
        log.info("%s %d records, %.0f a second%s", self._what, self._records, rate, mean)
        self._said_at, self._scored, self._loss = now, 0, 0.0
