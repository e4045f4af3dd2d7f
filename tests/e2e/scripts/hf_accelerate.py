"""A loop of one's own with accelerate, which wraps the model, shares the data out and keeps the state. For torchrun."""

import argparse
import shutil
from pathlib import Path

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import set_seed
from pace import report
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def newest(folder: Path) -> Path | None:
    found = sorted(folder.glob("step_*[0-9]"), key=lambda path: int(path.name.removeprefix("step_")))
    return found[-1] if found else None


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """All processes write; then the first gives the folder its name, and removes the ones before."""
    unfinished, done = folder / "unfinished", folder / f"step_{step}"
    accelerator.save_state(str(unfinished), safe_serialization=False)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(done, ignore_errors=True)
        unfinished.rename(done)
        for old in sorted(folder.glob("step_*[0-9]"), key=lambda path: path.stat().st_mtime)[:-2]:
            shutil.rmtree(old)
    accelerator.wait_for_everyone()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small regression.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, help="of each process")
    parser.add_argument("--output", type=Path, default=Path("output"))
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(0)
    x = torch.rand(512, 4)
    dataset = TensorDataset(x, (x * torch.tensor([1.0, -2.0, 3.0, -4.0])).sum(1, keepdim=True))
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    args.output.mkdir(parents=True, exist_ok=True)
    step = 0
    found = newest(args.output)
    if found is not None:
        accelerator.load_state(str(found))
        step = int(found.name.removeprefix("step_"))
        accelerator.print(f"goes on from {found}")

    while step < args.steps:
        epoch, begun = divmod(step, len(loader))
        loader.set_epoch(epoch)
        for inputs, targets in skip_first_batches(loader, begun):
            loss = F.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            report(step, accelerator.process_index, accelerator.num_processes, f"loss {loss.item():.4f}")
            if step % args.save_every == 0:
                save(accelerator, args.output, step)
            if step == args.steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
