"""Data that a reduction carries besides gradients: control words, metrics, spot checks, the tree of slots."""
