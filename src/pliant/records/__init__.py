"""Readers of record files, for live training and for the task queue: one interface over all formats.

`open_records` opens files by their format. Every reader is a map-style data set, and reads a range in sequence.
"""

from pliant.records.base import Records
from pliant.records.open import FORMATS, open_records

__all__ = ["FORMATS", "Records", "open_records"]
