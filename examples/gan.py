"""A GAN whose two optimizers take turns on every batch, as in the usual script for one process.

Given as a dictionary, the optimizers take turns: each batch is used for one step of each. A turn is a step like any
other, so a worker may be lost or join between the two, and no turn is skipped or repeated.

Alone: `python examples/gan.py`. Elastically: `pliant run --job gan --workers 1:4 --target 2 examples/gan.py`.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import pliant.torch as pliant

NOISE = 8


def ring(samples: int) -> Tensor:
    """Make points near a circle of radius 2."""
    angle = torch.rand(samples, 1) * 2 * torch.pi
    return torch.cat([angle.cos(), angle.sin()], 1) * 2 + 0.05 * torch.randn(samples, 2)


class GAN(nn.Module):
    """The generator and the discriminator in one module: job.train gets one model."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(NOISE, width), nn.ReLU(), nn.Linear(width, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))


def discriminator_loss(gan: GAN, real: Tensor) -> Tensor:
    fake = gan.generator(torch.randn(len(real), NOISE)).detach()
    true, false = gan.discriminator(real), gan.discriminator(fake)
    return bce(true, torch.ones_like(true)) + bce(false, torch.zeros_like(false))


def generator_loss(gan: GAN, real: Tensor) -> Tensor:
    fooled = gan.discriminator(gan.generator(torch.randn(len(real), NOISE)))
    return bce(fooled, torch.ones_like(fooled))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--deterministic", action="store_true", help="the same bits at every number of workers")
    args = parser.parse_args()
    torch.manual_seed(1)
    data, gan = ring(args.samples), GAN()
    optimizers = {
        "discriminator": torch.optim.Adam(gan.discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999)),
        "generator": torch.optim.Adam(gan.generator.parameters(), lr=1e-3, betas=(0.5, 0.999)),
    }
    losses = {"discriminator": discriminator_loss, "generator": generator_loss}
    with pliant.join() as job:
        run = job.train(
            gan,
            optimizers,
            data,
            batch_size=64,
            slots=4,
            epochs=args.epochs,
            seed=1,
            deterministic=args.deterministic,
        )
        for real in run:
            assert run.turn is not None
            run.backward(losses[run.turn](gan, real))  # gradients of the other network are dropped
            run.step()
        if run.rank == 0:
            radius = gan.generator(torch.randn(1000, NOISE)).norm(dim=1).mean().item()
            print(f"mean radius of 1000 generated points: {radius:.6f} (the data has 2.00)", flush=True)


if __name__ == "__main__":
    main()
