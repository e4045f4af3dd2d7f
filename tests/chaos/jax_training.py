"""A training script of the chaos runs in JAX: optax, a running mean, dropout by the key, noise by numpy."""

import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path.insert(0, str(Path(__file__).parents[1]))

import pliant.jax as pliant  # after the path
from chaos import probe, worker
from chaos.array_lesson import CLASSES, FEATURES, HIDDEN, Average, Readings
from chaos.probe import Place, Probe
from chaos.worker import digest, record
from pliant.jax.frame import JaxFrame
from pliant.train.live.arrays.reducer import FloatingArrayReducer
from pliant.train.live.arrays.tree_reducer import TreeArrayReducer

compiled: list[str] = []  # one entry for each compilation of this process


def net() -> dict[str, Any]:
    chance = np.random.Generator(np.random.PCG64(1))
    sizes = {"first": (FEATURES, HIDDEN), "bias": (HIDDEN,), "second": (HIDDEN, CLASSES)}
    return {name: (chance.normal(size=size) * 0.3).astype(np.float32) for name, size in sizes.items()}


def losses_of(params: Any, mean: Any, x: Any, y: Any, kept: Any) -> Any:
    hidden = jnp.tanh((x - mean) @ params["first"] + params["bias"]) * kept
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["second"], y)


def loss_of(params: Any, moves: Any, x: Any, y: Any, key: Any) -> tuple[Any, Any]:
    kept = jax.random.bernoulli(key, 0.9, (len(x), HIDDEN)) / 0.9
    moved = {"mean": 0.9 * moves["mean"] + 0.1 * x.mean(0)}
    return losses_of(params, moves["mean"], x, y, kept).mean(), (moved, kept.mean())


def main() -> None:
    worker.dump_stacks_on_request()
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if name.endswith("backend_compile_duration") else None
    )
    where = Probe(worker.FOLDER)
    probe.install(where, FloatingArrayReducer, TreeArrayReducer)
    where.wrap(JaxFrame, JaxFrame.apply, Place.APPLY)
    readings, params, first = Readings(), net(), {"mean": np.zeros(FEATURES, np.float32)}
    average = Average(jax.tree.leaves(params))
    compute = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
    record(started=os.getpid())
    try:
        with pliant.join() as job:
            run = job.train(
                params,
                optax.adam(3e-3),
                readings,
                batch_size=worker.BATCH,
                slots=worker.SLOTS,
                epochs=worker.EPOCHS,
                seed=worker.SEED,
                moves=first,
                compute=lambda params, batch, key: compute(params, first, *batch, key),
                state={"average": average},
                deterministic=worker.DETERMINISTIC,
            )
            before = len(compiled)
            for x, y in run:
                where.begin_step(run.step_number)
                with where.inside(Place.FORWARD):
                    (loss, (moved, drawn)), grads = compute(run.params, run.extra, x, y, run.key)
                where.at(Place.BACKWARD)
                where.point(Place.BACKWARD)
                run.log(loss=loss, drawn=drawn)
                where.at(Place.BETWEEN)
                if run.step(grads, moves=moved):
                    average.update(jax.tree.leaves(run.params))
            recompiled = len(compiled) - before
    except pliant.Left as left:
        record(left=left.code, why=left.why)
        raise
    parts: dict[str, Any] = {
        "weights": jax.tree.leaves(run.params),
        "buffers": jax.tree.leaves(run.extra),
        "optimizer": jax.tree.leaves(run.opt_state),
        "average": average.state_dict(),
        "metrics": {name: value.hex() for name, value in sorted(run.metrics.items())},
    }
    hashes = {name: digest(part) for name, part in parts.items()}
    loss = float(losses_of(run.params, run.extra["mean"], readings.points, readings.labels, 1.0).mean())
    record(final=hashes, loss=loss, step=run.step_number, updates=average.updates, size=run.size, compiled=recompiled)


if __name__ == "__main__":
    main()
