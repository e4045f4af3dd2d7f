"""JAX on several processes: data parallel with pmap over all their devices, and the state in one .npz file."""

import argparse
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from pace import report

State = dict[str, Any]


def init(key: Any) -> State:
    one, two = jax.random.split(key)
    return {
        "w1": jax.random.normal(one, (20, 64)) / 4,
        "b1": jnp.zeros(64),
        "w2": jax.random.normal(two, (64, 2)) / 8,
        "b2": jnp.zeros(2),
    }


def loss_of(params: State, x: Any, y: Any) -> Any:
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    scores = jax.nn.log_softmax(hidden @ params["w2"] + params["b2"])
    return -jnp.take_along_axis(scores, y[:, None], axis=1).mean()


def one_step(params: State, velocity: State, x: Any, y: Any) -> tuple[State, State, Any]:
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    loss, grads = jax.lax.pmean((loss, grads), axis_name="workers")
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return jax.tree.map(lambda p, v: p - 0.05 * v, params, velocity), velocity, loss


def batch(step: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """This process's part of a step's samples, one share for each of its devices."""
    devices = jax.local_device_count()
    chance = np.random.default_rng([step, jax.process_index()])
    x = chance.normal(size=(devices, count, 20)).astype("float32")
    return x, (x[..., :10].sum(-1) > x[..., 10:].sum(-1)).astype("int32")


def save(path: Path, step: int, params: State, velocity: State) -> None:
    first = jax.tree.map(lambda each: np.asarray(each.addressable_data(0))[0], (params, velocity))
    arrays = {f"p_{name}": value for name, value in first[0].items()}
    arrays |= {f"v_{name}": value for name, value in first[1].items()}
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        np.savez(file, step=step, **arrays)
    unfinished.replace(path)


def load(path: Path) -> tuple[int, State, State]:
    with np.load(path) as found:
        parts = [{name[2:]: found[name] for name in found.files if name.startswith(start)} for start in ("p_", "v_")]
        return int(found["step"]), parts[0], parts[1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of each device")
    parser.add_argument("--checkpoint", type=Path, default=Path("state.npz"))
    args = parser.parse_args()

    jax.distributed.initialize()
    rank, world = jax.process_index(), jax.process_count()
    step, params = 0, init(jax.random.key(0))
    velocity = jax.tree.map(jnp.zeros_like, params)
    if args.checkpoint.exists():
        step, params, velocity = load(args.checkpoint)
        print(f"goes on at step {step}", flush=True)

    copies = jax.local_device_count()
    params, velocity = jax.tree.map(lambda each: jnp.stack([each] * copies), (params, velocity))
    train = jax.pmap(one_step, axis_name="workers")
    while step < args.steps:
        params, velocity, loss = train(params, velocity, *batch(step, args.batch_size))
        shown = float(np.asarray(loss.addressable_data(0))[0])  # waits until it is computed
        step += 1
        report(step, rank, world, f"loss {shown:.4f}")
        if rank == 0 and step % args.save_every == 0:
            save(args.checkpoint, step, params, velocity)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
