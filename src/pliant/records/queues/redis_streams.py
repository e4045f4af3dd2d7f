"""Redis streams as a queue: each stream is a partition, and the entry 0-N has the offset N."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pliant.errors import BadInput
from pliant.records.packages import needs_package
from pliant.records.queues.partitioned import QueueRecords

if TYPE_CHECKING:
    from redis import Redis

PAGE = 1000  # entries of a request
RETRIES = 20
PAUSE_MAX_S = 2.0  # between two of them


def open_redis_streams(
    url: str,
    streams: Sequence[str],
    *,
    complete_key: str | None = None,
    transform: Callable[[Any], Any] | None = None,
) -> QueueRecords:
    """Open streams of a Redis server, 7.0 or later, at a URL such as `rediss://user:password@host:6379/0`.

    Producers add entries with `XADD stream 0-* field value`, which numbers them without gaps. A record is a dictionary
    of an entry's fields, as bytes. The streams are complete once the key `complete_key` exists.
    """
    if not streams or len({*streams}) < len(streams):
        raise BadInput(f"pass one or more streams with different names, got {list(streams)}")
    return QueueRecords(RedisStreams(url, streams, complete_key), transform)


class RedisStreams:
    """A queue over a connection to Redis, which several threads may share."""

    def __init__(self, url: str, streams: Sequence[str], complete_key: str | None) -> None:
        self._streams, self._complete_key = tuple(streams), complete_key
        self._redis = _connect(url)

    def partitions(self) -> Mapping[str, tuple[int, int]]:
        return {stream: self._offsets(stream) for stream in self._streams}

    def read(self, partition: str, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        while start < stop:
            with _as_os_errors():
                page: Any = self._redis.xrange(partition, f"0-{start}", f"0-{stop - 1}", count=PAGE)
            if not page:
                return
            for name, fields in page:
                start = _offset_of(partition, name)
                yield start, fields
            start += 1

    def is_complete(self) -> bool:
        if self._complete_key is None:
            return False
        with _as_os_errors():
            return bool(self._redis.exists(self._complete_key))

    def _offsets(self, stream: str) -> tuple[int, int]:
        """Return the first offset of a stream and the one after its last; a stream without an entry begins with 1."""
        with _as_os_errors():
            if not self._redis.exists(stream):
                return 1, 1
            last = _offset_of(stream, self._redis.xinfo_stream(stream)["last-generated-id"])
            first: Any = self._redis.xrange(stream, count=1)
        return (_offset_of(stream, first[0][0]) if first else last + 1), last + 1


def _offset_of(stream: str, name: bytes | str) -> int:
    """Return N of the entry 0-N. Raises BadInput for other entries: their offsets would have gaps."""
    text = name.decode() if isinstance(name, bytes) else name
    time, _, number = text.partition("-")
    if time != "0":
        raise BadInput(
            f"Stream {stream} has the entry {text}. Add entries with XADD {stream} 0-* ..., so that they are numbered."
        )
    return int(number)


def _connect(url: str) -> Redis:
    with needs_package("redis", "redis"):
        from redis import Redis, exceptions
        from redis.backoff import ExponentialBackoff
        from redis.retry import Retry
    try:
        return Redis.from_url(
            url,
            retry=Retry(ExponentialBackoff(cap=PAUSE_MAX_S, base=0.05), RETRIES),
            retry_on_error=[exceptions.ConnectionError, exceptions.TimeoutError],
            socket_timeout=30.0,
        )
    except ValueError as error:
        raise BadInput(f"{url.split('@')[-1]!r} is no URL of a Redis server: {error}") from error


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Raise failures of the connection as OSError, and others as BadInput."""
    from redis import exceptions

    try:
        yield
    except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
        if isinstance(error, exceptions.AuthenticationError):
            raise BadInput(f"Redis refused the credentials: {error}") from error
        raise OSError(f"Redis is not reached: {error}") from error
    except exceptions.RedisError as error:
        raise BadInput(f"Redis refused a request: {error}") from error
