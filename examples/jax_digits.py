"""The digits of `digits.py` with JAX and optax, on any number of workers.

Alone: `python examples/jax_digits.py`. Elastically: `pliant run --job digits --workers 1:4 examples/jax_digits.py`.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import pliant.jax as pliant


def network(seed: int) -> dict[str, Any]:
    chance = np.random.default_rng(seed)
    sizes = {"hidden": (64, 64), "bias": (64,), "out": (64, 10)}
    return {name: (chance.normal(size=size) * 0.1).astype(np.float32) for name, size in sizes.items()}


def logits_of(params: Any, x: Any, key: Any = None) -> Any:
    hidden = jax.nn.relu(x @ params["hidden"] + params["bias"])
    if key is not None:
        hidden *= jax.random.bernoulli(key, 0.8, hidden.shape) / 0.8
    return hidden @ params["out"]


def loss_of(params: Any, x: Any, y: Any, key: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits_of(params, x, key), y).mean()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--deterministic", action="store_true", help="the same bits for any number of workers")
    args = parser.parse_args()
    data = load_digits()
    x, y = (data.images.reshape(-1, 64) / 16).astype(np.float32), data.target.astype(np.int32)
    test = np.arange(len(y)) % 5 == 0
    loss_and_grad, predict = jax.jit(jax.value_and_grad(loss_of)), jax.jit(logits_of)

    with pliant.join() as job:
        run = job.train(
            network(7),
            optax.adamw(2e-3),
            (x[~test], y[~test]),
            batch_size=64,
            slots=16,
            epochs=args.epochs,
            deterministic=args.deterministic,
            compute=lambda params, batch, key: loss_and_grad(params, *batch, key),
        )
        for epoch in run.epochs():
            for images, labels in epoch:
                loss, grads = loss_and_grad(run.params, images, labels, run.key)
                run.log(loss=loss)
                run.step(grads)
            totals = run.evaluate(
                lambda batch: {"right": (predict(run.params, batch[0]).argmax(-1) == jnp.asarray(batch[1])).sum()},
                pliant.Arrays(x[test], y[test]),
                batch_size=64,
            )
            if run.rank == 0:
                print(f"epoch {epoch.number}: loss {run.metrics['loss']:.3f}, {totals['right'] / test.sum():.1%} right")


if __name__ == "__main__":
    main()
