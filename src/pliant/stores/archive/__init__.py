"""Archives: files that hold the old events of jobs, so that a store keeps only the newest.

`segments` writes events into segments and reads them back. `folder` keeps the files in a folder, `objects` anywhere
that fsspec reaches. A store names the segments of a job (`pliant.stores.base`), and only those count: a file that no
store names is left from a process that was killed, and is never read.
"""
