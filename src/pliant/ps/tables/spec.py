"""The settings of tables and of pushes, equal on all workers and servers of a job."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import msgspec

from pliant.errors import BadInput
from pliant.ps.tables.optimizers import Adagrad, RowOptimizer

DIM_MAX = 65_536
TABLES_MAX = 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")


class Table(msgspec.Struct, frozen=True):
    """A table of rows with `dim` float32 values, each row found by an integer id.

    A row exists from its first push on. Before that, its values follow from `seed` and its id, uniformly between
    -`scale` and `scale`, on every server alike.
    """

    name: str
    dim: int
    optimizer: RowOptimizer = Adagrad(0.05)
    scale: float = 0.01
    seed: int = 0

    @property
    def width(self) -> int:
        """The number of columns of a row with its slots."""
        return self.dim + self.optimizer.columns(self.dim)

    @property
    def salt(self) -> int:
        """A number that makes equal ids of different tables lie in different buckets."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "little")


class PushPolicy(msgspec.Struct, frozen=True):
    """The treatment of pushes.

    With `grads_to_wait` above 1, a server adds up the gradients of that many pushes and applies their mean. The
    staleness of a push is the number of updates since its worker pulled. `staleness_max` refuses a push beyond it; None
    accepts all. `staleness_rates` divides the learning rate by the staleness. `BY_STEP` is the policy of live jobs.
    """

    grads_to_wait: int = 1
    staleness_max: int | None = None
    staleness_rates: bool = False

    @property
    def by_step(self) -> bool:
        """Return whether the gradients of a step are added up, and applied once a request of a later step arrives."""
        return not self.grads_to_wait


BY_STEP = PushPolicy(grads_to_wait=0)


def check_tables(tables: Sequence[Table], policy: PushPolicy) -> None:
    """Raise BadInput for settings that cannot be used."""
    names = [table.name for table in tables]
    if len(names) > TABLES_MAX or len({*names}) < len(names):
        raise BadInput(f"A job can have up to {TABLES_MAX} tables with different names, got {names[:20]}.")
    for table in tables:
        if not _NAME.fullmatch(table.name):
            raise BadInput(f"A table's name must be 1 to 63 letters, digits and ._-, got {table.name!r}.")
        if not 1 <= table.dim <= DIM_MAX:
            raise BadInput(f"Table {table.name}: dim must be 1 to {DIM_MAX}, got {table.dim}.")
        if not 0 <= table.scale < float("inf"):
            raise BadInput(f"Table {table.name}: scale must be 0 or more, got {table.scale}.")
        table.optimizer.check()
    if policy.grads_to_wait < 1 and policy != BY_STEP:
        raise BadInput(f"grads_to_wait must be 1 or more, got {policy.grads_to_wait}.")
    if policy.staleness_max is not None and policy.staleness_max < 0:
        raise BadInput(f"staleness_max must be 0 or more, or None, got {policy.staleness_max}.")


def table_terms(tables: Sequence[Table], policy: PushPolicy) -> tuple[tuple[str, str], ...]:
    """Return the settings as terms that every worker must have equal."""
    digest = hashlib.sha256(msgspec.msgpack.encode((list(tables), policy))).hexdigest()[:16]
    text = ", ".join(f"{table.name}:{table.dim}:{type(table.optimizer).__name__}" for table in tables)
    return (("tables", f"{text[:200]} ({digest})"),) if tables else ()
