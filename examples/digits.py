"""A small network that recognises handwritten digits, on any number of workers.

Alone: `python examples/digits.py`. Elastically: `pliant run --job digits --workers 1:4 examples/digits.py`. With
`--deterministic` both compute the same weights, to the last bit, through every change of workers.
"""

import argparse
import hashlib

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import pliant.torch as pliant


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Load the 1797 pictures of 8 by 8 points of scikit-learn; every fifth is kept for the test."""
    data = load_digits()
    pictures = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    test = torch.arange(len(labels)) % 5 == 0
    return TensorDataset(pictures[~test], labels[~test]), TensorDataset(pictures[test], labels[test])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 4 * 4, 10),
    )


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return the SHA-256 of the weights and of the optimizer's state."""
    tensors = [*model.state_dict().values(), *(t for state in optimizer.state.values() for t in state.values())]
    return hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for tensor in tensors)).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--deterministic", action="store_true", help="the same bits for any number of workers")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train, test = digits()
    model = network().to(pliant.device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    with pliant.join() as job:
        run = job.train(
            model,
            optimizer,
            train,
            batch_size=96,
            epochs=args.epochs,
            seed=args.seed,
            slots=12 if args.deterministic else None,  # each is computed separately, so not too many
            deterministic=args.deterministic,
        )
        for pictures, labels in run:  # this worker's part of the batch
            loss = F.cross_entropy(model(pictures), labels)
            loss.backward()
            run.log(loss=loss)
            if run.step() and run.rank == 0 and run.step_number % 50 == 0:
                done, loss_now = f"step {run.step_number} of {run.total_steps}", run.metrics["loss"]
                print(f"{done}, {run.size} workers, loss {loss_now:.4f}", flush=True)

        def right(batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"right": (model(batch[0]).argmax(1) == batch[1]).sum()}

        found = run.evaluate(right, test, batch_size=60)
        if run.rank == 0:
            print(f"accuracy {found['right'] / len(test):.4f} on {len(test)} pictures", flush=True)
            print(f"SHA-256 {fingerprint(model, optimizer)}", flush=True)


if __name__ == "__main__":
    main()
