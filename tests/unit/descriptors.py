"""A process with many open files, as a script that maps hundreds of data files has them."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

SELECT_MAX = 1024  # select() takes no descriptor from here on


@contextmanager
def many_descriptors() -> Iterator[None]:
    """Open so many files that the next descriptor is beyond what select() takes."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(2 * SELECT_MAX, limits[1])), limits[1]))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < SELECT_MAX:
            opened.append(os.dup(opened[0]))
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
