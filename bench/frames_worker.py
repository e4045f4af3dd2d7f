"""A worker of `bench/frames.py`: blocks of Pliant's steps with JAX, Keras or TensorFlow, or of the framework's own.

Under `pliant run` it trains with Pliant. `frames_worker.py RANK PORT` trains as the framework itself does, alone or
with another process. The first workers of the two take turns, by a file.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

FOLDER, MODEL = Path(os.environ["BENCH_FOLDER"]), os.environ["BENCH_MODEL"]
FRAMEWORK, WORLD = os.environ["BENCH_FRAMEWORK"], int(os.environ["BENCH_WORLD"])
ROUNDS, STEPS = int(os.environ["BENCH_ROUNDS"]), int(os.environ["BENCH_STEPS"])
SHAPES = {"S": (208, 2), "M": (1824, 3)}  # those of bench/training.py: 0.1 and 10 M parameters
BATCH, FEATURES, CLASSES, STEPS_PER_EPOCH, EPOCHS = 256, 64, 10, 64, 10_000
SLOTS = 4 * WORLD  # one item for each member and step
RATE, MOMENTUM = 1e-3, 0.9
STAMP = struct.Struct("<dI")  # as bench/training.py reads it
LOOK_S = 0.002
PLIANT, OWN = "pliant", "own"


class Turns:
    """Blocks of steps, in turn with the other system. Call `stepped` after each step of a full world."""

    def __init__(self, me: str) -> None:
        self._me, self._turn = me, FOLDER / "turn"
        self._count, self._began, self._left = 0, 0.0, ROUNDS + 1  # the first block is a warm-up

    def stepped(self) -> bool:
        """Return False once all blocks are done. The first step of a block waits for its turn, and does not count."""
        if not self._left:
            return False
        if self._count == 0:
            while not self._turn.exists() or self._turn.read_text() != self._me:
                time.sleep(LOOK_S)
        if self._count == 1:
            self._began = time.perf_counter()
        self._count += 1
        if self._count == STEPS + 2:
            self._note((time.perf_counter() - self._began) / STEPS)
            self._count = 0
        return self._left > 0

    def _note(self, seconds: float) -> None:
        self._left -= 1
        if self._left < ROUNDS:
            with (FOLDER / f"{self._me}.rounds").open("a") as file:
                file.write(json.dumps(seconds) + "\n")
        new = self._turn.with_suffix(".new")
        new.write_text(OWN if self._me == PLIANT else PLIANT)
        new.rename(self._turn)


class Watch:
    """Writes the time of each step of a member, and how often something was compiled since its first step."""

    def __init__(self, member: str, compiled: Callable[[], int]) -> None:
        self._stamps = (FOLDER / f"{member}.steps").open("wb", buffering=0)
        self._file, self._compiled, self._before = FOLDER / f"{member}.compiled", compiled, -1
        self._turns = Turns(PLIANT)

    def stepped(self, run: Any) -> None:
        self._stamps.write(STAMP.pack(time.time(), run.step_number))
        if self._before < 0:
            self._before = self._compiled()
        if (count := self._compiled() - self._before) or not self._file.exists():
            self._file.write_text(str(count))
        if run.rank == 0 and run.size == WORLD:
            self._turns.stepped()


def samples() -> tuple[Any, Any]:
    chance = np.random.default_rng(0)
    count = BATCH * STEPS_PER_EPOCH
    x = chance.normal(size=(count, FEATURES)).astype(np.float32)
    return x, chance.integers(CLASSES, size=count).astype(np.int32)


def weights() -> list[Any]:
    width, depth = SHAPES[MODEL]
    chance, sizes = np.random.default_rng(1), [FEATURES, *[width] * (depth + 1), CLASSES]
    found: list[Any] = []
    for wide, narrow in pairwise(sizes):
        found.append((chance.normal(size=(wide, narrow)) / np.sqrt(wide)).astype(np.float32))
        found.append(np.zeros(narrow, np.float32))
    return found


def batches(rank: int) -> Callable[[], tuple[Any, Any]]:
    """Return a function that draws a worker's part of a batch."""
    x, y = samples()
    chance = np.random.default_rng(rank)

    def draw() -> tuple[Any, Any]:
        picked = chance.integers(len(x), size=BATCH // WORLD)
        return x[picked], y[picked]

    return draw


# ------------------------------------------------------------------------------------------------------------- JAX


def jax_loss(params: Sequence[Any], x: Any, y: Any) -> Any:
    import jax
    import optax

    for at in range(0, len(params) - 2, 2):
        x = jax.nn.relu(x @ params[at] + params[at + 1])
    return optax.softmax_cross_entropy_with_integer_labels(x @ params[-2] + params[-1], y).mean()


def jax_with_pliant() -> None:
    import jax
    import optax

    import pliant.jax as pliant

    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compiled.append(name) if name.endswith("backend_compile_duration") else None
    )
    compute = jax.jit(jax.value_and_grad(jax_loss))
    with pliant.join() as job:
        watch = Watch(job.member, lambda: len(compiled))
        run = job.train(
            weights(),
            optax.sgd(RATE, MOMENTUM),
            samples(),
            batch_size=BATCH,
            slots=SLOTS,
            epochs=EPOCHS,
            compute=lambda params, batch, _key: compute(params, *batch),
        )
        for x, y in run:
            _, grads = compute(run.params, x, y)
            if run.step(grads):
                watch.stepped(run)


def jax_itself(rank: int, port: int) -> None:
    import jax
    import optax
    from jax.sharding import NamedSharding, PartitionSpec

    optimizer, spec = optax.sgd(RATE, MOMENTUM), PartitionSpec("workers")
    if WORLD > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", WORLD, rank)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("workers",))

    def step(params: Any, state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        grads = jax.grad(jax_loss)(params, x, y)
        if WORLD > 1:
            grads = jax.lax.pmean(grads, "workers")
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    whole, params = PartitionSpec(), weights()
    state = optimizer.init(params)
    if WORLD > 1:
        kept = NamedSharding(mesh, whole)
        params, state = jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(kept, leaf), (params, state))
        # Without the check JAX sums the gradients of unvarying values by itself, and pmean would be a second time.
        step = jax.shard_map(
            step, mesh=mesh, in_specs=(whole, whole, spec, spec), out_specs=(whole, whole), check_vma=False
        )
    fused, turns, draw, shared = (
        jax.jit(step, donate_argnums=(0, 1)),
        Turns(OWN),
        batches(rank),
        NamedSharding(mesh, spec),
    )
    while True:
        batch = draw()
        if WORLD > 1:
            batch = tuple(jax.make_array_from_process_local_data(shared, each) for each in batch)
        params, state = jax.block_until_ready(fused(params, state, *batch))
        if rank == 0 and not turns.stepped():
            return


# ----------------------------------------------------------------------------------------------------------- Keras


def keras_model() -> Any:
    import keras

    width, depth = SHAPES[MODEL]
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(depth + 1)]
    model = keras.Sequential([keras.Input((FEATURES,)), *hidden, keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(RATE, momentum=MOMENTUM), loss=loss)
    return model


def keras_callback(stepped: Callable[[], object]) -> Any:
    import keras

    class Stepped(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002  # Keras passes both
            stepped()

    return Stepped()


def keras_with_pliant() -> None:
    import pliant.keras as pliant

    model = keras_model()
    with pliant.join() as job:
        run = job.train(model, samples(), batch_size=BATCH, slots=SLOTS, epochs=EPOCHS)
        watch = Watch(job.member, lambda: run._frame.base.traces)
        run.fit(callbacks=[keras_callback(lambda: watch.stepped(run))])


def keras_itself(rank: int, port: int) -> None:
    del rank, port
    model, turns = keras_model(), Turns(OWN)

    def stepped() -> None:
        if not turns.stepped():
            sys.exit()

    model.fit(*samples(), batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[keras_callback(stepped)])


# ------------------------------------------------------------------------------------------------------ TensorFlow


def tensorflow_grads(variables: Sequence[Any], x: Any, y: Any) -> Any:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        for at in range(0, len(variables) - 2, 2):
            x = tf.nn.relu(x @ variables[at] + variables[at + 1])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ variables[-2] + variables[-1])
        loss = tf.reduce_mean(losses)
    return tape.gradient(loss, variables)


def tensorflow_with_pliant() -> None:
    import keras
    import tensorflow as tf

    import pliant.tensorflow as pliant

    traces: list[int] = []
    variables = [tf.Variable(each) for each in weights()]

    def traced(x: Any, y: Any) -> Any:
        traces.append(1)
        return tensorflow_grads(variables, x, y)

    compute = tf.function(traced)

    def part(batch: Any) -> Any:
        return compute(*map(tf.constant, batch))

    optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    with pliant.join() as job:
        run = job.train(variables, optimizer, samples(), batch_size=BATCH, slots=SLOTS, epochs=EPOCHS, compute=part)
        watch = Watch(job.member, lambda: len(traces) + run._frame.traces)
        for batch in run:
            if run.step(part(batch)):
                watch.stepped(run)


def tensorflow_itself(rank: int, port: int) -> None:
    """Train with Keras' optimizer alone, and with an update written out under the strategy, which Keras 3 lacks."""
    import keras
    import tensorflow as tf

    workers = [f"127.0.0.1:{port + at}" for at in range(WORLD)]
    if WORLD > 1:
        cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        os.environ["TF_CONFIG"] = json.dumps(cluster)
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if WORLD > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        variables = [tf.Variable(each) for each in weights()]
        speeds = [tf.Variable(tf.zeros_like(each)) for each in weights()]
    optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    optimizer.build(variables)

    def step(x: Any, y: Any) -> None:
        grads = tensorflow_grads(variables, x, y)
        if WORLD == 1:
            optimizer.apply(grads, variables)
            return
        context = tf.distribute.get_replica_context()
        grads = context.all_reduce(tf.distribute.ReduceOp.MEAN, grads)
        for variable, speed, grad in zip(variables, speeds, grads, strict=True):
            speed.assign(MOMENTUM * speed + grad)
            variable.assign_sub(RATE * speed)

    fused = tf.function(lambda x, y: strategy.run(step, (x, y)))
    turns, draw = Turns(OWN), batches(rank)
    while True:
        fused(*map(tf.constant, draw()))
        if rank == 0 and not turns.stepped():
            return


if __name__ == "__main__":
    if len(sys.argv) > 1:
        own = {"jax": jax_itself, "keras": keras_itself, "tensorflow": tensorflow_itself}
        own[FRAMEWORK](int(sys.argv[1]), int(sys.argv[2]))
    else:
        {"jax": jax_with_pliant, "keras": keras_with_pliant, "tensorflow": tensorflow_with_pliant}[FRAMEWORK]()
