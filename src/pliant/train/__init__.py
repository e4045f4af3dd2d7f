"""The training library, without a framework.

What may live here: what a worker needs to train, whichever framework computes its gradients: sessions,
state, transfer, checkpoints, loading. Modules here may import numpy, which the `train` extra brings, and
they say so at their top; none imports torch, TensorFlow or JAX: the adapters do that, and they import this
package. Importing this package alone loads nothing.
"""
