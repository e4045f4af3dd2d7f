"""The commands of `pliant kube`."""
