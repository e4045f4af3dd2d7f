"""The global batch of the coming steps, as an object of a run's state (ADR 0051)."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from pliant.core.data.grid import BATCH_MAX, Grid
from pliant.errors import BadInput

CHANGES_MAX = 1000  # of one job; every new member receives all of them


class BatchedLoop(Protocol):
    """The training loop, as far as the batch depends on it."""

    @property
    def grid(self) -> Grid: ...
    @property
    def is_after_step(self) -> bool:
        """True between a step and the next item of the loop."""

    def check_batch(self, batch: int) -> None: ...


class BatchSize:
    """The global batch of the coming steps. Pass it to `job.train` in `state=`, and call `set` after a step.

    What user code sets is part of the state, so a new member and a checkpoint have it. The members agree on it in the
    next step, and the steps after that one have the new batch.
    """

    def __init__(self) -> None:
        self._wanted = 0
        self._loop: BatchedLoop | None = None

    @property
    def value(self) -> int:
        """The batch that was set last, or else the one of `job.train`."""
        return self._wanted or self._run().grid.newest_batch

    def set(self, batch: int) -> None:
        """Set the global batch. Call it on every member alike, after `run.step()` is True.

        It must be a function of reduced values. A member that sets another batch than the others leaves with an error.
        """
        loop = self._run()
        try:
            batch = operator.index(batch)
        except TypeError:
            raise BadInput(f"The batch must be a whole number, got {batch!r}.") from None
        grid = loop.grid
        if not loop.is_after_step:
            raise BadInput("The batch was set within a step. Call set after run.step() is True.")
        if not grid.slots <= batch < BATCH_MAX:
            raise BadInput(
                f"{grid.slots} slots cannot share a batch of {batch} samples. Pass slots= to job.train, at most as "
                "many as the smallest batch has samples."
            )
        loop.check_batch(batch)
        if batch != self.value and len(grid.changes) >= CHANGES_MAX:
            raise BadInput(f"The batch was changed {CHANGES_MAX} times, which is the limit. Change it less often.")
        self._wanted = batch

    @property
    def wanted(self) -> int:
        """The batch that was set last; 0 if none was."""
        return self._wanted

    def state_dict(self) -> dict[str, int]:
        return {"wanted": self._wanted}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._wanted = int(state_dict["wanted"])

    def bind(self, loop: BatchedLoop) -> None:
        """Take the run whose batch this is."""
        self._loop = loop

    def _run(self) -> BatchedLoop:
        if self._loop is None:
            raise BadInput('This BatchSize belongs to no run. Pass it to job.train, as state={"batch": batch}.')
        return self._loop


def batch_size_of(others: Iterable[object]) -> BatchSize | None:
    """Return the batch size among the objects of a run's state."""
    found = [other for other in others if isinstance(other, BatchSize)]
    if len(found) > 1:
        raise BadInput(f"state= has {len(found)} objects of BatchSize. Pass one.")
    return found[0] if found else None
