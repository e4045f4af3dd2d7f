"""The process group that the reductions of tensors use, over TCP or NCCL."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

from pliant.train.group.contract import Group

TensorGroup: TypeAlias = Group[Tensor]
"""The ranks of one generation, for tensors."""
