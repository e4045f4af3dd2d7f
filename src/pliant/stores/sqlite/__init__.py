"""A store in one file on a local disk, for one machine: SQLite, from the standard library.

What may live here: everything that knows that the store is a SQLite file. `store` fulfils the contract of
`pliant.stores.base`; `file` opens, checks and commits; `schema` makes the tables and moves old ones on;
`mark` remembers beside the file how far it had got; `watch` tells of what others wrote; `alive` knows whether
a process still runs; `errors` turns what SQLite and the system say into sentences.

**Why a write that was answered outlives a power cut.** The file is in WAL mode with `synchronous=FULL`. A
commit appends its pages to the `-wal` file and flushes that (`fdatasync`) before it counts, and before anyone
can see it. A new `-wal` file needs its name flushed too, which is the directory's business: SQLite does it with
the first commit but ignores a failure, so we do it ourselves when we open. A checkpoint flushes the `-wal` file,
copies the pages, flushes the main file, and only then may the `-wal` file start again from its beginning. After
a power cut the next open finds the last whole commit in the `-wal` file by its checksums. All of it rests on the
disk: it has to keep what it said it had flushed. Should it not, the mark tells (see `mark`).
`docs/internals/durability.md` has how we looked at each of these flushes.

**Where it does not work.** On a network file system, since WAL needs memory shared between the processes that
have the file open. Carry no handle across a fork.
"""

from pliant.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
