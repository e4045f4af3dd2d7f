"""Send objects between a member and its data workers, with tensors and arrays in shared memory.

Each object travels in one block of anonymous shared memory, which holds the pickled object and the bytes of its tensors
and arrays. The socket carries only the block's descriptor. So there is no thread that serves descriptors, no temporary
file that a kill leaves behind, no use of /dev/shm (small in most containers), and the sender may have exited when the
object is opened.

This is not a wire format: both ends are one program on one machine, before and after a fork.
"""

from __future__ import annotations

import io
import os
import socket
import struct
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

_ALIGN = 64
_PROTOCOL = 5  # the first with out-of-band buffers


def send(to: socket.socket, thing: object) -> None:
    """Send an object. Blocks if the receiver lags far behind."""
    buffers: list[memoryview] = []
    body = io.BytesIO()
    _Packer(body, _PROTOCOL, True, lambda buffer: buffers.append(buffer.raw())).dump(thing)
    chunks = [body.getbuffer(), *buffers]
    sizes = struct.pack(f"<{len(chunks) + 1}Q", len(chunks), *[chunk.nbytes for chunk in chunks])
    block = os.memfd_create("pliant batch")
    try:
        with open(block, "wb", closefd=False) as file:
            for chunk in (memoryview(sizes), *chunks):
                file.write(chunk)
                file.write(bytes(-file.tell() % _ALIGN))
        socket.send_fds(to, [b"p"], [block])
    finally:
        os.close(block)


def receive(at: socket.socket) -> Any:
    """Wait for the next object and return it, or None if the other end is closed."""
    try:
        word, blocks, _, _ = socket.recv_fds(at, 1, 1, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None
    if not word:
        return None
    if not blocks:
        raise OSError("a batch arrived without its memory: too many files are open (see ulimit -n)")
    try:
        size = os.fstat(blocks[0]).st_size
        # Mapped by path, so that no descriptor stays open while user code keeps the batch.
        memory = torch.from_file(f"/proc/self/fd/{blocks[0]}", shared=True, size=size, dtype=torch.uint8)
    finally:
        os.close(blocks[0])
    view = memory.numpy().data
    (count,) = struct.unpack_from("<Q", view)
    sizes = struct.unpack_from(f"<{count}Q", view, 8)
    chunks: list[memoryview] = []
    end = 8 + 8 * count
    for nbytes in sizes:
        start = end + -end % _ALIGN
        end = start + nbytes
        chunks.append(view[start:end])
    return ForkingPickler.loads(chunks[0], buffers=chunks[1:])


class _Packer(ForkingPickler):
    """A pickler that turns tensors into arrays, whose bytes are sent out of band."""

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is torch.Tensor:
            return _reduced(thing)
        if isinstance(thing, torch.Tensor | torch.UntypedStorage | torch.TypedStorage):
            # Sparse tensors and subclasses are sent by value: torch's own reduction would serve descriptors.
            return thing.__reduce_ex__(2)
        return NotImplemented


def _reduced(tensor: torch.Tensor) -> tuple[Callable[..., torch.Tensor], tuple[Any, ...]]:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.requires_grad:
        by_value: tuple[Callable[..., torch.Tensor], tuple[Any, ...]] = tensor.__reduce_ex__(2)  # type: ignore[no-untyped-call]
        return by_value
    # Axes in memory order, so that channels-last stays channels-last.
    axes = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    straight = tensor.resolve_conj().resolve_neg().permute(axes).contiguous()
    back = [axes.index(axis) for axis in range(tensor.ndim)]
    return _rebuilt, (straight.view(-1).view(torch.uint8).numpy(), tensor.dtype, tuple(straight.shape), back)


def _rebuilt(octets: Any, dtype: torch.dtype, shape: tuple[int, ...], back: list[int]) -> torch.Tensor:
    return torch.from_numpy(octets).view(dtype).view(shape).permute(back)
