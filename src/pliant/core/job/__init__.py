"""The decisions of a job: commands in, events out, and the state after them."""
