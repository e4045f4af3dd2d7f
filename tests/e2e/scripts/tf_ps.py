"""ParameterServerStrategy: the chief hands out steps, workers compute them, parameter servers hold the variables.

One script for all of them, each started with its own task in TF_CONFIG. Workers may come and go. The chief goes on from
its newest checkpoint when it is started again.
"""

import argparse
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")  # a worker that is away is waited for

import tensorflow as tf
from pace import report

BATCH = 32


def serve(resolver: Any) -> None:
    """Return what a worker or a parameter server does: whatever the chief asks for, until it is stopped."""
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        start=True,
    )
    print(f"{resolver.task_type} {resolver.task_id} serves pid {os.getpid()}", flush=True)
    server.join()


def samples(seed: int) -> Any:
    """An endless stream; each worker has its own."""

    def one(number: Any) -> tuple[Any, Any]:
        x = tf.random.stateless_normal((BATCH, 20), (seed, number))
        return x, tf.cast(tf.reduce_sum(x[:, :10], 1) > tf.reduce_sum(x[:, 10:], 1), tf.int32)

    return tf.data.Dataset.counter().map(lambda number: one(tf.cast(number, tf.int32)))


def train(resolver: Any, args: argparse.Namespace) -> None:
    """Return what the chief does."""
    workers = resolver.cluster_spec().num_tasks("worker")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        w1 = tf.Variable(tf.random.stateless_normal((20, 64), (1, 1)) / 4.0)
        b1 = tf.Variable(tf.zeros(64))
        w2 = tf.Variable(tf.random.stateless_normal((64, 2), (2, 2)) / 8.0)
        b2 = tf.Variable(tf.zeros(2))
        step = tf.Variable(0, dtype=tf.int64)
    parts = [w1, b1, w2, b2]
    keeper = tf.train.CheckpointManager(
        tf.train.Checkpoint(w1=w1, b1=b1, w2=w2, b2=b2, step=step), str(args.output), max_to_keep=2
    )
    if keeper.restore_or_initialize():
        print(f"goes on at step {int(step.numpy())}", flush=True)

    @tf.function
    def one_step(iterator: Any) -> Any:
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            scores = tf.matmul(tf.nn.relu(tf.matmul(x, w1) + b1), w2) + b2
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores))
        for part, gradient in zip(parts, tape.gradient(loss, parts), strict=True):
            part.assign_sub(0.05 * gradient)
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(lambda: samples(7)))
    done = int(step.numpy())
    while done < args.steps:
        losses = [coordinator.schedule(one_step, args=(iterator,)) for _ in range(workers)]
        coordinator.join()
        done += len(losses)
        step.assign(done)
        report(done, 0, workers, f"loss {losses[-1].fetch():.4f}")
        if done // args.save_every != (done - len(losses)) // args.save_every:
            keeper.save()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("output"))
    args = parser.parse_args()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    else:
        train(resolver, args)


if __name__ == "__main__":
    main()
