"""Choose the library that reduces the gradients of a run."""

from __future__ import annotations

import torch

from pliant.errors import BadInput

TCP, NCCL = "tcp", "nccl"


def choose(wanted: str | None, device: torch.device, *, local_rank: int, may_share_gpu: bool) -> str:
    """Return NCCL for a model on a GPU, and TCP otherwise, unless the script wants TCP.

    Several workers on one GPU need NCCL 2.29 or newer, which the user allows by NCCL's own variable (`may_share_gpu`).
    """
    if wanted not in (None, TCP, NCCL):
        raise BadInput(f'collectives must be "nccl" or "tcp", got {wanted!r}.')
    is_possible = device.type == "cuda" and torch.distributed.is_nccl_available()
    if wanted == NCCL and not is_possible:
        raise BadInput(f'collectives="nccl" needs a model on a GPU and PyTorch with NCCL; the model is on {device}.')
    if wanted == TCP or not is_possible:
        return TCP
    gpus = torch.cuda.device_count()
    if local_rank >= gpus and not may_share_gpu:
        raise BadInput(
            f"Worker {local_rank} of this machine shares a GPU with another one ({gpus} visible), which NCCL refuses. "
            f'Pass --nproc-per-node {gpus} to `pliant run`, or collectives="tcp" to job.train. NCCL 2.29 and newer '
            "allow it with NCCL_MULTI_RANK_GPU_ENABLE=1."
        )
    return NCCL
