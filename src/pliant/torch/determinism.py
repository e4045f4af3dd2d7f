"""What must be pinned down so that the same computation gives the same bits (`deterministic=True`).

Kernels: torch is told to use deterministic ones and to name the operation that has none. Threads: how many share an
operation decides how its sums are formed, so their number stays what it was when training began. Optimizers: whether
they step one parameter after the other or all at once is said, not left to torch. The kernels are put back at the end.

`bits` tells members apart whose software or hardware would give other bits: by name where there is one, and by a short
computation whose result is hashed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # as everybody calls it

from pliant import settings
from pliant.core.model.fingerprint import Fingerprint
from pliant.errors import BadInput


class Pinned:
    """Hold it while training; `close` puts everything back."""

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
            settings.choose("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it, and torch insists on it
        self._set_kernels(enabled=True, warns=False)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        self._threads = torch.get_num_threads()
        for optimizer in optimizers:
            _choose_kind(optimizer, device)

    def close(self) -> None:
        enabled, warns, cudnn_deterministic, cudnn_benchmark = self._before
        self._set_kernels(enabled=enabled, warns=warns)
        torch.backends.cudnn.deterministic = cudnn_deterministic
        torch.backends.cudnn.benchmark = cudnn_benchmark

    def _set_kernels(self, *, enabled: bool, warns: bool) -> None:
        """torch's own function imports its compiler for this, for seconds; only compiled models need that."""
        if self._compiled:
            torch.use_deterministic_algorithms(enabled, warn_only=warns)
        else:
            torch._C._set_deterministic_algorithms(enabled, warn_only=warns)

    def kept(self, step: Callable[[], None]) -> Callable[[], None]:
        """The same step, refused if user code changed what the bits depend on."""

        def checked() -> None:
            self._require_kept()
            step()

        return checked

    def _require_kept(self) -> None:
        if (threads := torch.get_num_threads()) != self._threads:
            raise BadInput(
                f"torch computes with {threads} threads now, and with {self._threads} when training began: other "
                "threads give other bits; call torch.set_num_threads before job.train, on every member alike."
            )
        if not torch.are_deterministic_algorithms_enabled():
            raise BadInput(
                "torch.use_deterministic_algorithms was turned off during deterministic training: leave it on."
            )


def _choose_kind(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """torch chooses by what it finds where it runs; the group says it once for all, and travels with the state."""
    for group in optimizer.param_groups:
        if group.get("fused", True) is None:
            group["fused"] = False
        if group.get("foreach", True) is None:
            group["foreach"] = device.type == "cuda" and not group.get("fused")


def bits(device: torch.device) -> Fingerprint:
    """What the bits of a computation here depend on. Two members that give the same may train together."""
    kind = torch.backends.cpu.get_cpu_capability()
    if device.type == "cuda":
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch's own
        kind = f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}, cuDNN {cudnn}"
    return (
        ("torch", str(torch.__version__)),
        ("device", f"{device.type} ({kind})"),
        ("threads", str(torch.get_num_threads())),
        ("matmul precision", torch.get_float32_matmul_precision()),
        ("fingerprint", _fingerprint(device)),
    )


def _fingerprint(device: torch.device) -> str:
    """A hash over what a few kinds of kernels give, forward and backward. It takes some tens of milliseconds."""
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
