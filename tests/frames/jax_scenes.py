"""A script of JAX: a small net with dropout and a running mean, and optax."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import pliant.jax as pliant
from frames.story import FEATURES, FramePlan, Story, points
from live.reports import say

Plan = FramePlan
CLASSES, HIDDEN = 3, 8

compiled: list[str] = []  # one entry for each compilation of this process


def warm_up() -> None:
    """Members are forked: no computation may run here, and JAX warns about a fork that does no harm yet."""
    warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)


def net(seed: int) -> dict[str, Any]:
    chance = np.random.Generator(np.random.PCG64(seed))
    sizes = {"a": (FEATURES, HIDDEN), "b": (HIDDEN,), "c": (HIDDEN, CLASSES)}
    return {name: (chance.normal(size=size) * 0.3).astype(np.float32) for name, size in sizes.items()}


def loss_of(params: Any, moves: Any, x: Any, y: Any, key: Any) -> tuple[Any, Any]:
    moved = {"mean": 0.9 * moves["mean"] + 0.1 * x.mean(0)}
    hidden = jnp.tanh((x - moves["mean"]) @ params["a"] + params["b"])
    hidden = hidden * jax.random.bernoulli(key, 0.9, hidden.shape) / 0.9
    losses = optax.softmax_cross_entropy_with_integer_labels(hidden @ params["c"], y)
    return losses.mean(), moved


def train(plan: FramePlan) -> None:
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if name.endswith("backend_compile_duration") else None
    )
    story = Story(plan)
    compute = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
    first = {"mean": np.zeros(FEATURES, np.float32)}
    data = points(plan)
    with pliant.join() as job:
        run = job.train(
            net(plan.own_seed),
            optax.sgd(0.05) if plan.averages else optax.adam(0.01),
            data,
            moves=first,
            state=story.state,
            compute=lambda params, batch, key: compute(params, first, *batch, key),
            **plan.arguments,
        )
        own = run.average_models(plan.averages) if plan.averages else None
        say(joined=True)
        for x, y in run:
            before = len(compiled)
            story.at("forward", run)
            (loss, moved), grads = compute(run.params, run.extra, x, y, run.key)
            run.log(loss=loss)
            story.at("backward", run)
            if run.step(grads, moves=moved):
                story.stepped(run, compiled=len(compiled) - before)
                if plan.evaluate and run.step_number % 10 == 0:
                    totals = run.evaluate(lambda batch: {"count": len(batch[1])}, pliant.Arrays(*data), batch_size=7)
                    say(evaluated=run.step_number, count=totals["count"])
        found = [np.asarray(leaf) for leaf in jax.tree.leaves((run.params, run.opt_state, run.extra))]
        story.done(found, distance=0.0 if own is None else own.distance)
