"""Process groups: the ranks of one generation, which sum and exchange arrays."""
