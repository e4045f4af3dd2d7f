"""Process groups of a generation: the choice of a library, TCP for tensors, and NCCL."""
