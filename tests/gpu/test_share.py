"""A copy of a state on a GPU, read by another process. Skipped where there is no GPU."""

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU here", allow_module_level=True)

from gpu.reader import DEVICE, read  # noqa: E402
from pliant.torch.state.gpu_share import GpuMemory  # noqa: E402
from pliant.torch.state.tensors import kind_of  # noqa: E402

PATIENCE_S = 120.0


@pytest.fixture
def reader() -> Iterator[Connection]:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=read, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    yield ours
    ours.close()
    process.join(PATIENCE_S)


def test_another_process_reads_the_tensors_as_they_were_copied(reader: Connection) -> None:
    tensors = [
        torch.arange(5, device=DEVICE, dtype=torch.float32),
        torch.ones(2, 3, device=DEVICE, dtype=torch.bfloat16).t(),  # not contiguous
        torch.tensor(7.0),  # on the CPU, as Adam's step is
        torch.empty(0, device=DEVICE),
    ]
    copy = GpuMemory(DEVICE).copy(tensors)
    assert copy is not None
    tensors[0].zero_()
    reader.send(
        (copy.handle, [t.nbytes for t in tensors], [kind_of(t) for t in tensors], [tuple(t.shape) for t in tensors])
    )
    assert reader.poll(PATIENCE_S)
    assert reader.recv() == [
        ("cuda:0", [0.0, 1.0, 2.0, 3.0, 4.0]),
        ("cuda:0", [[1.0, 1.0]] * 3),
        ("cpu", 7.0),
        ("cuda:0", []),
    ]
    copy.close()


def test_a_handle_that_names_no_copy_is_an_error(reader: Connection) -> None:
    reader.send((b"\x01" * 64, [4], ["float32@device"], [(1,)]))
    assert reader.poll(PATIENCE_S)
    assert "cuIpcOpenMemHandle" in reader.recv()


def test_copies_leave_no_memory_behind() -> None:
    memory = GpuMemory(DEVICE)
    state = [torch.zeros(64 << 20, dtype=torch.uint8, device=DEVICE)]
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info(DEVICE)[0]
    for _ in range(20):
        copy = memory.copy(state)
        assert copy is not None
        copy.close()
    assert torch.cuda.mem_get_info(DEVICE)[0] >= before - (64 << 20)


def test_without_room_there_is_no_copy() -> None:
    free = torch.cuda.mem_get_info(DEVICE)[0]
    assert GpuMemory(DEVICE).copy([torch.zeros(1, dtype=torch.uint8, device=DEVICE).expand(free)]) is None
