"""Deterministic training and verification: the options of `job.train`, and the settings that fix torch's results.

With `deterministic=True` the same computation gives the same bits. Kernels: torch uses deterministic ones and names an
operation that has none. Threads: their number decides how an operation forms its sums, so it must not change during
training. Optimizers: whether they step parameters one by one or all at once is set explicitly. The kernel settings are
restored at the end.

`fingerprint` distinguishes members whose software or hardware would compute other bits. It lists names where there are
any, and the hash of a short computation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # torch's own convention
from torch import nn

from pliant import settings
from pliant.core.data.grid import Grid
from pliant.core.model.fingerprint import Fingerprint
from pliant.errors import BadInput
from pliant.torch.reduce.base import Reducer
from pliant.torch.reduce.deterministic import DeterministicReducer
from pliant.torch.reduce.floating import FloatingReducer
from pliant.torch.state.buffers import Buffers
from pliant.torch.state.optimizers import Optimizers
from pliant.train.live.options import VerifyOptions
from pliant.train.reduce.metrics import StepMetrics


@dataclass(frozen=True, slots=True)
class DeterminismOptions(VerifyOptions):
    """The options of `job.train` about determinism and verification, and their consequences for torch."""

    def apply(self, optimizers: Optimizers, device: torch.device, *, compiled: bool) -> DeterministicSettings | None:
        """Apply the deterministic settings, and return them; None if training is not deterministic."""
        return DeterministicSettings(optimizers.all, device, compiled=compiled) if self.deterministic else None

    def fingerprint(self, device: torch.device) -> Fingerprint:
        """Return this member's fingerprint; empty if members with any other may join."""
        return fingerprint(device) if self.deterministic and not self.other_bits else ()

    def reducer(
        self,
        model: nn.Module,
        buffers: Buffers,
        logged: StepMetrics,
        device: torch.device,
        grid: Grid,
        *,
        over_nccl: bool,
    ) -> Reducer:
        if not self.deterministic:
            return FloatingReducer(model, buffers, logged, device, over_nccl=over_nccl)
        return DeterministicReducer(model, buffers, logged, device, grid, self.is_checked)


class DeterministicSettings:
    """Settings that make torch deterministic, from construction until `close` restores the previous ones."""

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], device: torch.device, *, compiled: bool = False
    ) -> None:
        self._compiled = compiled
        self._before = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.benchmark,
        )
        if device.type == "cuda":
            settings.set_default("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS, required by torch
        self._set_kernels(enabled=True, warns=False)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        self._threads = torch.get_num_threads()
        for optimizer in optimizers:
            _choose_implementation(optimizer, device)

    def close(self) -> None:
        enabled, warns, cudnn_deterministic, cudnn_benchmark = self._before
        self._set_kernels(enabled=enabled, warns=warns)
        torch.backends.cudnn.deterministic = cudnn_deterministic
        torch.backends.cudnn.benchmark = cudnn_benchmark

    def _set_kernels(self, *, enabled: bool, warns: bool) -> None:
        """Set deterministic kernels. torch's own function imports its compiler, which takes seconds."""
        if self._compiled:
            torch.use_deterministic_algorithms(enabled, warn_only=warns)
        else:
            torch._C._set_deterministic_algorithms(enabled, warn_only=warns)

    def guard(self, step: Callable[[], None]) -> Callable[[], None]:
        """Wrap `step` to raise BadInput if user code changed a setting that the bits depend on."""

        def checked() -> None:
            self._require_unchanged()
            step()

        return checked

    def _require_unchanged(self) -> None:
        if (threads := torch.get_num_threads()) != self._threads:
            raise BadInput(
                f"torch computes with {threads} threads now, and with {self._threads} when training began, which "
                "changes the bits. Call torch.set_num_threads before job.train, with the same number on every member."
            )
        if not torch.are_deterministic_algorithms_enabled():
            raise BadInput(
                "torch.use_deterministic_algorithms was turned off during deterministic training: leave it on."
            )


def _choose_implementation(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Set the implementation explicitly. torch's choice depends on the machine; the setting moves with the state."""
    for group in optimizer.param_groups:
        if group.get("fused", True) is None:
            group["fused"] = False
        if group.get("foreach", True) is None:
            group["foreach"] = device.type == "cuda" and not group.get("fused")


def fingerprint(device: torch.device) -> Fingerprint:
    """Return what the bits of a computation on this machine depend on. Members with equal values can train together."""
    kind = torch.backends.cpu.get_cpu_capability()
    if device.type == "cuda":
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch's own
        kind = f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}, cuDNN {cudnn}"
    return (
        ("torch", str(torch.__version__)),
        ("device", f"{device.type} ({kind})"),
        ("threads", str(torch.get_num_threads())),
        ("matmul precision", torch.get_float32_matmul_precision()),
        ("fingerprint", _kernel_hash(device)),
    )


def _kernel_hash(device: torch.device) -> str:
    """Return a hash of the results of some kernels, forward and backward. Takes tens of milliseconds."""
    chance = torch.Generator().manual_seed(5)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=chance).to(device).requires_grad_()

    with torch.enable_grad():
        x, w = drawn(128, 257), drawn(257, 190)
        hidden = F.gelu(F.layer_norm(x @ w, (190,)))
        image, kernel = drawn(4, 6, 17, 17), drawn(8, 6, 3, 3)
        seen = F.batch_norm(F.conv2d(image, kernel), None, None, training=True)
        attended = torch.softmax(hidden @ hidden.T, dim=-1) @ hidden
        total = attended.tanh().exp().sum() + seen.sigmoid().square().mean() + hidden.logsumexp(0).std()
    grads = torch.autograd.grad(total, (x, w, image, kernel))
    digest = hashlib.sha256()
    for tensor in (total, hidden, seen, *grads):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
