"""PyTorch features in a worker that was forked from a template."""

import socket
from collections.abc import Iterator

import pytest

from e2e.family import Family
from pliant.agent.process.script import Script
from pliant.agent.process.template import TORCH

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]  # torch is imported from nothing now and then, to compare


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    with Family(tmp_path_factory.mktemp("torch")) as made:
        assert made.warm(*TORCH, OMP_NUM_THREADS="1") == ""
        yield made


def forked(family: Family, name: str, script: Script, **env: str) -> None:
    family.fork(name, script, OMP_NUM_THREADS="1", **env)
    family.pid(name)
    assert family.processes.plainly.get(name, "") == ""


LOADER = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.tensor(float(index * index))

if __name__ == "__main__":
    loader = DataLoader(Squares(), batch_size=2, num_workers=2, multiprocessing_context=sys.argv[1])
    print([batch.tolist() for batch in loader])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_loader_has_workers_of_its_own(warm: Family, method: str) -> None:
    script = warm.written(LOADER)
    forked(warm, "worker", Script(script.kind, script.name, (method,)))
    assert warm.outcome("worker") == (0, ["[[0.0, 1.0], [4.0, 9.0], [16.0, 25.0], [36.0, 49.0]]"])


POOL = """
import multiprocessing, os, sys

def twice(number):
    return number * 2

class Local:
    pass

def tell(queue, local):
    queue.put(type(local).__name__)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(2) as pool:
        print(pool.map(twice, range(4)))
    queue = context.Queue()
    child = context.Process(target=tell, args=(queue, Local()))
    child.start()
    print(queue.get(), child.join(), child.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works_with_every_start_method(warm: Family, method: str) -> None:
    script = warm.written(POOL)
    forked(warm, "worker", Script(script.kind, script.name, (method,)))
    assert warm.outcome("worker") == (0, ["[0, 2, 4, 6]", "Local None 0"])


WORLD = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.full((2, 4), float(dist.get_rank()))).sum().backward()
optimizer.step()
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print(total.item(), sum(p.double().sum().item() for p in model.parameters()))
dist.destroy_process_group()
"""


def test_a_world_of_two_forked_workers_trains_as_a_spawned_one(warm: Family) -> None:
    script = warm.written(WORLD)
    words = []
    for fork in (False, True):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        for rank in range(2):
            if fork:
                forked(warm, f"rank{rank}", script, RANK=str(rank), **where)
            else:
                warm.start(f"rank{rank}", script, RANK=str(rank), OMP_NUM_THREADS="1", **where)
        assert {warm.end() for _ in range(2)} == {("rank0", 0), ("rank1", 0)}
        for rank in range(2):
            warm.sinks[f"rank{rank}"].wait(20.0)
        # torch 2.9 prints the connections of gloo.
        words += [[w for w in warm.words[f"rank{rank}"] if not w.startswith("[Gloo]")] for rank in range(2)]
    assert words[0][0].startswith("3.0 ")
    assert all(each == words[0] for each in words)


THREADS = """
import numpy as np, torch
a = np.random.rand(300, 300)
assert np.allclose(a @ a, (torch.from_numpy(a) @ torch.from_numpy(a)).numpy())
torch.set_num_threads(2)
b = torch.rand(400, 400)
print(torch.isfinite(b @ b).all().item(), torch.get_num_threads(), torch.nn.functional.relu(b).shape[0])
"""


def test_libraries_with_threads_of_their_own_make_them_anew(warm: Family) -> None:
    forked(warm, "worker", warm.written(THREADS))
    assert warm.outcome("worker") == (0, ["True 2 400"])


def test_a_first_step_imports_next_to_nothing(warm: Family) -> None:
    text = WORLD.replace("import torch\n", "import torch, sys\nbefore = set(sys.modules)\n", 1)
    text += "\nprint(*sorted(set(sys.modules) - before))\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "1"}
    forked(warm, "worker", warm.written(text), RANK="0", **where)
    code, words = warm.outcome("worker")
    assert code == 0
    assert len(words[1].split()) < 10  # of more than 800
