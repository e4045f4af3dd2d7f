"""Commands for machines and jobs that share a pool."""
