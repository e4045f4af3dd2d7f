"""Which samples a member reads: sample order, slots, micro-batches, seeds."""
