"""A member's life in a live job, without a framework: the loop, the job, the run, evaluation, checkpoints and replay.

A framework joins by one of two interfaces. `engine.Engine` is the wide one, for a framework that reduces its gradients
itself, as PyTorch does during backward. `frame.Frame` is the small one, over arrays in host memory: `arrays` builds an
engine around it.
"""
