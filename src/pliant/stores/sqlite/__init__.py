"""A store in one SQLite file on a local disk.

`store` implements the contract of `pliant.stores.base`. `file` opens, checks and commits. `schema` creates and migrates
the tables. `mark` records beside the file how many commits it had. `process_identity` detects that a process has
exited. `errors` translates errors of SQLite and the system.

**Why an acknowledged write survives a power cut.** The file is in WAL mode with `synchronous=FULL`. A commit appends
its pages to the `-wal` file and flushes it (`fdatasync`) before it counts, and before a reader can see it. The name of
a new `-wal` file must be flushed too, with the directory. SQLite does that with the first commit but ignores a failure,
so `file` does it again when it opens the store. A checkpoint flushes the `-wal` file, copies the pages and flushes the
main file. Only then may the `-wal` file start again from its beginning. After a power cut the next open finds the last
whole commit in the `-wal` file by its checksums. All of this relies on the disk, which must keep what it reported as
flushed. If it does not, the mark shows it (see `mark`). `docs/internals/durability.md` describes how each flush was
tested.

**Where it does not work.** On a network file system, because WAL needs memory shared between the processes that have
the file open. Do not use a handle after a fork.
"""

from pliant.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
