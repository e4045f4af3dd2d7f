"""The training library, without a framework.

Everything a worker needs to train with any framework: sessions, state, transfer, checkpoints, loading. Modules may
import numpy, which the `train` extra installs, and then state it in their docstring. None imports torch, TensorFlow or
JAX: the adapters do, and they import this package. Importing this package alone loads nothing.
"""
