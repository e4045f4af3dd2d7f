"""A second process that reads a copy of a state on the GPU."""

from multiprocessing.connection import Connection

import torch

from pliant.torch.state.gpu_share import GpuMemory
from pliant.torch.state.tensors import from_leaf

DEVICE = torch.device("cuda", 0)


def read(pipe: Connection) -> None:
    """Read each copy that the pipe names, and send back what was in it."""
    memory = GpuMemory(DEVICE)
    while True:
        try:
            handle, nbytes, kinds, shapes = pipe.recv()
        except EOFError:
            return
        try:
            contents = memory.read(handle, nbytes)
        except OSError as error:
            pipe.send(str(error))
            continue
        found = [
            from_leaf(kind, shape, content, DEVICE)
            for kind, shape, content in zip(kinds, shapes, contents, strict=True)
        ]
        pipe.send([(str(tensor.device), tensor.cpu().tolist()) for tensor in found])
