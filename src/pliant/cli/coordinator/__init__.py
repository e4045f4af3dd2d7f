"""Commands of the people who run a coordinator: the coordinator itself, its tokens and its certificates."""
