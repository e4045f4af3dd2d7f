"""The functions of a model module, and the checks of them when it is loaded.

    def custom_model() -> model              or custom_model(run), for embeddings in tables
    def loss(labels, outputs) -> loss        of each record, or their mean
    def optimizer() -> optimizer             of pliant.ps; the parameter servers apply it
    def feed(records, mode) -> batch         (features, labels); in mode "predict" the features alone
    def eval_metrics_fn() -> dict            name -> function(labels, outputs); optional
    def tables() -> list of pliant.ps.Table  optional
    def custom_data_reader(source) -> data   with a length and records by number; optional

The arguments of losses and metrics are recognised by the name `labels`, in either order.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast, get_args

from pliant.errors import BadInput, PliantError
from pliant.ps import Table
from pliant.ps.tables.optimizers import RowOptimizer

Scored = Callable[[Any, Any], Any]  # labels and outputs to a value of each record, or their mean

REQUIRED = {
    "custom_model": "`def custom_model()`, which returns the model",
    "loss": "`def loss(labels, outputs)`, which returns the loss of each record, or their mean",
    "optimizer": "`def optimizer()`, which returns an optimizer of pliant.ps",
    "feed": "`def feed(records, mode)`, which returns the features and the labels of a list of records",
}
OPTIONAL = ("eval_metrics_fn", "tables", "custom_data_reader")
ARGUMENTS = {
    "custom_model": ("run",),
    "optimizer": (),
    "feed": ("records", "mode"),
    "eval_metrics_fn": (),
    "tables": (),
    "custom_data_reader": ("source",),
}
LOSS = "loss"  # the name under which an evaluation reports the loss


@dataclass(frozen=True, slots=True)
class ModelModule:
    """A model module whose functions were checked. Losses and metrics take (labels, outputs)."""

    name: str
    build_model: Callable[[Any], Any]  # with a run, for tables
    loss: Scored
    optimizer: RowOptimizer
    feed: Callable[[list[Any], str], Any]
    metrics: Mapping[str, Scored]
    tables: tuple[Table, ...]
    read_data: Callable[[str], Any] | None
    source: str  # the content of its file

    def labelled(self, records: list[Any], mode: str) -> tuple[Any, Any]:
        """Return the features and labels of records."""
        found = self.feed(records, mode)
        if not (isinstance(found, tuple) and len(found) == 2):
            raise BadInput(
                f'{self.name}: feed(records, "{mode}") must return (features, labels), got {describe(found)}.'
            )
        return found


def load(where: str) -> ModelModule:
    """Import a module, by its file or its dotted name, and check its functions. Raises BadInput."""
    module = _import(where)
    if missing := [name for name in REQUIRED if not hasattr(module, name)]:
        wanted = "; ".join(REQUIRED[name] for name in missing)
        raise BadInput(f"{where} has no {' and no '.join(missing)}. Add {wanted}.")
    found = {name: getattr(module, name) for name in (*REQUIRED, *OPTIONAL) if hasattr(module, name)}
    for name, function in found.items():
        if not callable(function):
            raise BadInput(f"{where}: {name} must be a function, got {describe(function)}.")
        if name in ARGUMENTS:
            _check_arguments(where, name, function)
    takes_run = bool(inspect.signature(found["custom_model"]).parameters)
    return ModelModule(
        name=where,
        build_model=found["custom_model"] if takes_run else lambda _run: found["custom_model"](),
        loss=_scored(where, LOSS, found["loss"]),
        optimizer=_optimizer(where, found["optimizer"]()),
        feed=found["feed"],
        metrics=_metrics(where, found["eval_metrics_fn"]()) if "eval_metrics_fn" in found else {},
        tables=_tables(where, found["tables"]()) if "tables" in found else (),
        read_data=found.get("custom_data_reader"),
        source=_source(module),
    )


def describe(value: Any) -> str:
    """Return the type of a value, for a message."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"a {name} of {len(value)}" if isinstance(value, tuple | list | dict) else name


def _import(where: str) -> ModuleType:
    path = Path(where)
    is_file = path.suffix == ".py" or "/" in where
    if is_file and not (path.is_file() and path.suffix == ".py"):
        raise BadInput(
            f"There is no model module {where!r}. Pass a file of Python, or a module's name such as zoo.ads."
        )
    try:
        if not is_file:
            return importlib.import_module(where)
        return _import_file(path.resolve())
    except PliantError:
        raise
    except ModuleNotFoundError as error:
        if error.name == where.partition(".")[0]:
            raise BadInput(f"There is no model module {where!r} in this folder or on PYTHONPATH.") from error
        raise BadInput(f"{where} cannot be imported: {error}. Install that module, or correct the import.") from error
    except Exception as error:  # why: the module is the user's code and may raise anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        what = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
        raise BadInput(f"{where} cannot be imported: {what} ({last.filename}, line {last.lineno}).") from error


def _import_file(path: Path) -> ModuleType:
    """Import a file under its own name. Modules beside it can be imported."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # the name ends with .py
    assert spec.loader is not None  # as above
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _source(module: ModuleType) -> str:
    path = module.__file__
    return "" if path is None else Path(path).read_bytes().decode(errors="replace")


def _check_arguments(where: str, name: str, function: Callable[..., Any]) -> None:
    wanted = ARGUMENTS[name]
    signature = inspect.signature(function)
    try:
        signature.bind(*wanted)
    except TypeError:
        if name == "custom_model" and not signature.parameters:
            return
        either = "custom_model() or custom_model(run)" if name == "custom_model" else f"{name}({', '.join(wanted)})"
        raise BadInput(f"{where}: {name}{signature} cannot be called as {either}. Change its arguments.") from None


def _scored(where: str, name: str, function: Any) -> Scored:
    """Return a function of (labels, outputs), whatever the order in which it takes them."""
    names = list(inspect.signature(function).parameters)
    if "labels" not in names[:2] or len(names) < 2:
        raise BadInput(
            f"{where}: {name}({', '.join(names)}) must take two arguments, one of them named `labels`: "
            f"write {name}(labels, outputs) or {name}(outputs, labels)."
        )
    if names[0] == "labels":
        return cast("Scored", function)
    return lambda labels, outputs: function(outputs, labels)


def _optimizer(where: str, found: Any) -> RowOptimizer:
    kinds = get_args(RowOptimizer)
    if not isinstance(found, kinds):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise BadInput(
            f"{where}: optimizer() returned {describe(found)}. Return one of pliant.ps ({names}): the parameter "
            "servers apply it."
        )
    found.check()
    return cast("RowOptimizer", found)


def _metrics(where: str, found: Any) -> dict[str, Scored]:
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) and callable(each) for name, each in found.items()
    ):
        raise BadInput(
            f"{where}: eval_metrics_fn() must return a dictionary of functions by name, such as "
            f'{{"accuracy": lambda labels, outputs: ...}}; got {describe(found)}.'
        )
    if LOSS in found:
        raise BadInput(f'{where}: eval_metrics_fn() cannot name a metric "{LOSS}": the loss is always reported.')
    return {name: _scored(where, name, each) for name, each in found.items()}


def _tables(where: str, found: Any) -> tuple[Table, ...]:
    if not isinstance(found, list | tuple) or not all(isinstance(each, Table) for each in found):
        raise BadInput(f"{where}: tables() must return a list of pliant.ps.Table, got {describe(found)}.")
    return tuple(found)
