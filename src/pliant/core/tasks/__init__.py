"""The task queue: shards of records, given to members, returned and done. Pure, like the rest of the core.

Members of such a job train or predict each at its own pace, without a world. A shard is a range of records. It belongs
to one member at a time, and its attempt is the fencing token: a report of an earlier attempt is refused.
"""
