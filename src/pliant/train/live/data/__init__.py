"""Reading the samples of a run, for any framework: map-style data, shards and streams."""
