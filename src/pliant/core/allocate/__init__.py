"""Divide one pool of machines among jobs: `allocate` is pure, total and deterministic.

`model` has the input and the result, `sizes` the sizes a job can have and what each is worth, `plan` the division that
is aimed at, `grants` the part of it that can be granted now, `reasons` the sentence for each job.
"""

from pliant.core.allocate.grants import allocate
from pliant.core.allocate.model import Allotment, Demand, Leaving, Pool, QueueRule, Reason

__all__ = ["Allotment", "Demand", "Leaving", "Pool", "QueueRule", "Reason", "allocate"]
