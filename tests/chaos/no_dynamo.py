"""A stand-in for torch's compiler, which no worker uses here. The first optimizer imports it all the same.

So does a worker that asks for deterministic algorithms. Each of the hundreds of workers of a run would spend more than
a second on the import, which is a third of its start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch


class _Absent(ModuleType):
    """As much of `torch._dynamo` as code that is not compiled comes by."""

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Nothing is traced, so nothing is interrupted."""

    @staticmethod
    def disable(fn: Callable[..., Any], recursive: bool = True, **_: Any) -> Callable[..., Any]:
        return fn


def leave_out_compiler() -> None:
    """Call before the first optimizer is made."""
    torch._dynamo = sys.modules["torch._dynamo"] = _Absent("torch._dynamo")
    torch._inductor = sys.modules["torch._inductor"] = ModuleType("torch._inductor")
    sys.modules["torch._inductor.config"] = torch._inductor.config = ModuleType("torch._inductor.config")
