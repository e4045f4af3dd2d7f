"""Process groups of a generation: the contract, the choice of a library, and NCCL. gloo has a package of its own."""
