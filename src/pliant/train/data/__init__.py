"""The samples a member reads: order, slots, micro-batches, seeds."""
