"""Keras on several workers: MultiWorkerMirroredStrategy, its cluster from TF_CONFIG, and BackupAndRestore.

This strategy is not among those that Keras 3 supports, so this is Keras 2, as TensorFlow's own guides say: the package
`tf_keras`, by the variable below.
"""

import argparse
import os
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from pace import report

BATCHES = 5  # in an epoch


class Report(tf.keras.callbacks.Callback):
    """Says on every worker that a step is done."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__()
        self.rank = rank
        self.world = world

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        report(int(self.model.optimizer.iterations.numpy()), self.rank, self.world)


def dataset(batch: int) -> Any:
    x = np.random.default_rng(7).normal(size=(640, 20)).astype("float32")
    y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).astype("int32")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(640, seed=7).repeat().batch(batch).with_options(options)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier.")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--backup", type=Path, default=Path("backup"))
    args = parser.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank, world = strategy.cluster_resolver.task_id or 0, strategy.num_replicas_in_sync
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input((20,)), tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(2)]
        )
        model.compile(
            optimizer=tf.keras.optimizers.SGD(0.05),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    # Without deletion: a worker that has to come back after the end must see that it is the end.
    backup = tf.keras.callbacks.BackupAndRestore(str(args.backup), delete_checkpoint=False)
    model.fit(
        dataset(args.batch_size * world),
        epochs=args.epochs,
        steps_per_epoch=BATCHES,
        callbacks=[backup, Report(rank, world)],
        verbose=0,
    )
    print(f"worker {rank} is done after {int(model.optimizer.iterations.numpy())} steps", flush=True)


if __name__ == "__main__":
    main()
