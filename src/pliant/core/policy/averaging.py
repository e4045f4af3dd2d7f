"""Synchronous model averaging (SMA): every member trains a model of its own, and all are drawn to their mean.

In each step a member's model v moves by its own gradient g, and by the share alpha towards the mean of all models:

    v' = (1 - alpha) v + alpha mean(v) - rate g

The mean of the models, the centre, therefore moves by the mean gradient, as in ordinary training. So the centre is the
state of the job, and a member's model is the centre plus an offset that the member may lose at any time:

    centre' = centre - rate mean(g)        offset' = (1 - alpha) offset - rate (g - mean(g))
"""

from __future__ import annotations

from typing import Any


def next_offset(offset: Any, own: Any, mean: Any, *, rate: float, alpha: float) -> Any:
    """Return a member's offset after a step. Numbers or arrays: `own` is its gradient, `mean` that of the step."""
    return offset * (1.0 - alpha) - (own - mean) * rate
