"""Copies of a state on a GPU that other processes of the machine read there, over CUDA's interprocess handles.

The calls go to the driver's own library: torch offers them only together with its queues between processes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pliant.torch.state.gpu_copy import has_room

ALIGNED = 512  # each tensor begins at a multiple of this
LAZY_PEER_ACCESS = 1


class GpuMemory:
    """The memory of this process's GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._driver = _Driver()

    def copy(self, arrays: Sequence[Tensor]) -> GpuCopy | None:
        """Copy tensors into memory of its own; None if the GPU has no room.

        The copy is complete when this returns. It runs after the kernels that training has launched on its stream, and
        not after those of a collective: a collective may be waiting for the member that wants this copy.
        """
        starts, size = _places([array.nbytes for array in arrays])
        with torch.cuda.device(self._device), torch.no_grad():
            if not has_room(self._device, size):
                return None
            self._settle()
            try:
                copy = GpuCopy(self._driver, size, self._device)
            except OSError:
                return None
            room = _bytes_at(copy.pointer, size, self._device)
            for start, array in zip(starts, arrays, strict=True):
                flat = array.detach().contiguous().reshape(-1).view(torch.uint8)
                room[start : start + array.nbytes].copy_(flat)
            self._settle()
        return copy

    def read(self, handle: bytes, nbytes: Sequence[int]) -> tuple[Tensor, ...]:
        """Return each tensor's bytes on this process's GPU. Raises OSError if the copy cannot be opened here."""
        starts, size = _places(nbytes)
        try:
            with torch.cuda.device(self._device), torch.no_grad():
                self._settle()
                with self._driver.opened(handle) as pointer:
                    room = _bytes_at(pointer, size, self._device)
                    contents = tuple(
                        room[start : start + count].to(self._device, copy=True)
                        for start, count in zip(starts, nbytes, strict=True)
                    )
                    self._settle()
        except RuntimeError as error:  # of torch, also for want of memory
            raise OSError(f"the copy of the state could not be read: {error}") from error
        return contents

    def _settle(self) -> None:
        """Wait for the stream of this thread. It also makes the GPU's context that of this thread."""
        torch.cuda.current_stream(self._device).synchronize()


class GpuCopy:
    """A copy in memory that no allocator shares. Close it once, or let the process end."""

    def __init__(self, driver: _Driver, size: int, device: torch.device) -> None:
        self._driver = driver
        self._device = device
        self.pointer = driver.allocate(size)
        try:
            self.handle = driver.handle_of(self.pointer)
        except OSError:
            driver.free(self.pointer)
            raise

    def close(self) -> None:
        """Free the memory. The driver waits for all kernels: call it only while no collective is in flight."""
        with torch.cuda.device(self._device):
            torch.cuda.current_stream(self._device).synchronize()  # makes the GPU's context that of this thread
            self._driver.free(self.pointer)


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class _Driver:
    """Five functions of CUDA's driver. Each uses the context of the calling thread, and raises OSError."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def _call(self, name: str, *args: Any) -> None:
        code = getattr(self._library, name)(*args)
        if code:
            raise OSError(f"{name} failed with code {code} of the CUDA driver")

    def allocate(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def free(self, pointer: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def handle_of(self, pointer: int) -> bytes:
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(pointer))
        return ctypes.string_at(ctypes.byref(handle), ctypes.sizeof(handle))

    @contextmanager
    def opened(self, handle: bytes) -> Iterator[int]:
        """Map another process's memory while the block runs."""
        if len(handle) != ctypes.sizeof(_Handle):
            raise OSError(f"a handle of CUDA has {ctypes.sizeof(_Handle)} bytes, not {len(handle)}")
        pointer = ctypes.c_uint64()
        given = _Handle.from_buffer_copy(handle)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), given, ctypes.c_uint(LAZY_PEER_ACCESS))
        try:
            yield pointer.value
        finally:
            self._call("cuIpcCloseMemHandle", pointer)


class _Pointer:
    """A pointer as torch takes it."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


def _bytes_at(pointer: int, size: int, device: torch.device) -> Tensor:
    found: Tensor = torch.as_tensor(_Pointer(pointer, size), device=device)
    return found


def _places(nbytes: Sequence[int]) -> tuple[list[int], int]:
    """Return where each of the tensors begins, and the bytes of the whole copy."""
    starts, at = [], 0
    for count in nbytes:
        starts.append(at)
        at += -(-count // ALIGNED) * ALIGNED
    return starts, max(at, ALIGNED)
