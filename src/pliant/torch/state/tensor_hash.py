"""A hash of tensors that is fast enough for every step.

A tensor's bytes are read as 64-bit numbers, in chunks. First the upper half of each number is added to the lower one,
since otherwise two changed signs in upper halves would cancel out. Then each number is multiplied by an odd factor of
its position, and all are added modulo 2**64. A single flipped bit always changes the sum, since an odd number times a
power of two is never zero modulo 2**64. Any other change is missed with a chance of about one in 2**30. The sums of all
chunks are hashed. The hash detects hardware faults, not attacks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache

import torch
from torch import Tensor

_CHUNK = 1 << 16  # numbers; each chunk uses the same factors
_SMALL = 1 << 14  # numbers; below that, a call costs more than a copy
_DOWN = 33  # not 32: the signs of two neighbours in single precision would meet in one bit


def tensors_hash(tensors: Iterable[Tensor], besides: bytes = b"") -> int:
    """Return one hash of the tensors, in order, and of `besides`. Computed on the tensors' device."""
    digest = hashlib.blake2b(besides, digest_size=8, person=b"pliant state 1")
    sums = [_sums(tensor) for tensor in _join_small(tensors)]
    # Joined first, for a single copy from the GPU.
    digest.update(torch.cat([each.cpu() for each in _joined(sums)]).numpy().tobytes() if sums else b"")
    return int.from_bytes(digest.digest(), "little")


def _join_small(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the same numbers in fewer tensors: consecutive small ones of the same type are joined."""
    small: list[Tensor] = []
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        if small and (flat.numel() >= _SMALL or (flat.dtype, flat.device) != (small[0].dtype, small[0].device)):
            yield torch.cat(small)
            small = []
        if flat.numel() < _SMALL:
            small.append(flat)
        else:
            yield flat
    if small:
        yield torch.cat(small)


def _joined(sums: list[Tensor]) -> list[Tensor]:
    return [torch.cat(sums)] if len({each.device for each in sums}) == 1 else sums


def _sums(tensor: Tensor) -> Tensor:
    """Return one sum for each chunk of the tensor."""
    octets = tensor.contiguous().reshape(-1).view(torch.uint8)
    if octets.numel() % 8 or octets.storage_offset() % 8:
        padded = torch.zeros(-(-octets.numel() // 8) * 8, dtype=torch.uint8, device=octets.device)
        padded[: octets.numel()] = octets
        octets = padded
    numbers = octets.view(torch.int64)
    factors = _factors(tensor.device)
    whole = len(numbers) // _CHUNK * _CHUNK
    room = torch.empty_like(numbers[:_CHUNK])  # reused for each chunk, which is faster than new memory
    rest = _dot(_folded(numbers[whole:], room), factors[: len(numbers) - whole]).reshape(1)
    if not whole:
        return rest
    if tensor.device.type != "cpu":
        numbers = numbers + (numbers >> _DOWN)
        return torch.cat([(numbers[:whole].view(-1, _CHUNK) * factors).sum(1), rest])
    chunks = [_dot(_folded(numbers[at : at + _CHUNK], room), factors) for at in range(0, whole, _CHUNK)]
    return torch.cat([torch.stack(chunks), rest])


def _folded(numbers: Tensor, room: Tensor) -> Tensor:
    """Add the upper half of each number to the lower one."""
    return torch.bitwise_right_shift(numbers, _DOWN, out=room[: len(numbers)]).add_(numbers)


def _dot(numbers: Tensor, factors: Tensor) -> Tensor:
    """Return the dot product modulo 2**64. torch has none for integers on a GPU."""
    return torch.dot(numbers, factors) if numbers.device.type == "cpu" else (numbers * factors).sum()


@lru_cache(maxsize=8)
def _factors(device: torch.device) -> Tensor:
    chance = torch.Generator().manual_seed(11)
    drawn = torch.randint(-(1 << 62), 1 << 62, (_CHUNK,), generator=chance)
    return (drawn * 2 + 1).to(device)
