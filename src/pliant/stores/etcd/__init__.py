"""A store in an etcd cluster, for coordinators on several machines.

`store` implements the contract of `pliant.stores.base`. `keys` has the layout of the keys and `values` the contents.
`transactions` builds etcd's requests. `client` sends them to one of several endpoints and `errors` translates failures.
`access` has the addresses and credentials, `holds` the leases, `upkeep` compaction and the check of the space.

**One request for a batch.** A batch of writes is one transaction of etcd with a transaction for each write inside it.
Each inner one compares the job's revision and puts the events, so a conflict in one leaves the others alone. The outer
one compares the hold and the store's identity. etcd limits a request to 1.5 MiB and 128 operations, so longer batches
are sent in several requests.

**Large values.** A value above `CHUNK_BYTES` is stored in chunks before the write that refers to them. A reader finds
chunks only through that write, so they appear at once. Chunks of a write that failed are removed by the next large
write to that job.

**Reading from one moment.** etcd keeps old revisions of all keys until they are compacted. The requests of one `read`
after the first name the revision of the first answer, and start again if it was compacted meanwhile.
"""

from pliant.stores.etcd.access import EtcdAccess, parse_place
from pliant.stores.etcd.store import EtcdStore

__all__ = ["EtcdAccess", "EtcdStore", "parse_place"]
