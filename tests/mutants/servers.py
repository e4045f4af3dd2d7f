"""Planted bugs of parameter servers."""

from __future__ import annotations

from mutants.bugs import Planted
from mutants.edits import Edit

SERVERS = (
    Planted(
        "a repeated push is applied again",
        "servers: no push twice",
        "A push whose answer was lost is applied once more when its worker repeats it.",
        (
            Edit(
                "ps/tables/table_copy.py",
                "True if last is None else last[update.buckets] < update.sequence\n",
                "True if last is None else last[update.buckets] <= update.sequence\n",
            ),
        ),
    ),
    Planted(
        "rows in the middle of a step",
        "servers: pulls of a step",
        "In a live job a pull applies pushes of its own step, so that members compute from different rows.",
        (
            Edit(
                "ps/tables/table_copy.py",
                "(self._waiting[buckets] > 0) & (self._newest[buckets] < step)\n",
                "(self._waiting[buckets] > 0) & (self._newest[buckets] <= step)\n",
            ),
        ),
    ),
    Planted(
        "a copy without the numbers of pushes",
        "servers: no push twice",
        "A bucket that was copied forgets which pushes it has, and applies a repeated one again.",
        (
            Edit(
                "ps/tables/table_copy.py",
                "            if numbers[inside].any():\n",
                "            if numbers[inside].all():\n",
            ),
        ),
    ),
    Planted(
        "a backup that begins empty",
        "servers: acknowledged pushes",
        "A server that replaces a lost primary drops the copy that it kept for it.",
        (
            Edit(
                "ps/copies.py",
                "    copies.keep_only(roles.primary | roles.kept_for_others)\n",
                "    copies.keep_only(roles.kept_for_others)\n",
            ),
        ),
    ),
    Planted(
        "copies that are not compared",
        "servers: acknowledged pushes",
        "A primary takes a backup that has other pushes for equal, so that a later loss takes pushes away.",
        (
            Edit(
                "ps/tables/table_copy.py",
                "            found += np.where(numbers == 0, np.uint64(0), mix(numbers ^ _number_of(worker)))\n",
                "            found = np.where(numbers == 0, found, np.uint64(1))\n",
            ),
        ),
    ),
    Planted(
        "a bucket that opens without its backup",
        "servers: acknowledged pushes",
        "After a connection broke, a primary acknowledges pushes that its backup does not have.",
        (
            Edit(
                "ps/copies.py",
                "            found &= ~self._missing(self.sent_to(server), followed.get(server))\n",
                "            found &= ~self._missing(self.sent_to(server), followed.get(server, self.primary))\n",
            ),
        ),
    ),
    Planted(
        "the first update that a backup lacks is left out",
        "servers: acknowledged pushes",
        "A backup that lacks the last updates receives those after the first of them, and is taken for equal.",
        (
            Edit(
                "ps/tables/recent.py",
                "            mask[entry.buckets] = start[entry.buckets] <= entry.number\n",
                "            mask[entry.buckets] = start[entry.buckets] < entry.number\n",
            ),
        ),
    ),
    Planted(
        "updates that do not follow a copy on its way",
        "servers: acknowledged pushes",
        "A push that comes while a copy is sent is acknowledged, and the other server never receives it.",
        (
            Edit(
                "ps/copies.py",
                "        self.mask[buckets] = True\n        return tables.extract(buckets)\n",
                "        return tables.extract(buckets)\n",
            ),
            Edit(
                "ps/copies.py",
                "        self.arrived[buckets] = True\n\n    def begin_equal",
                "        self.mask[buckets] = self.arrived[buckets] = True\n\n    def begin_equal",
            ),
        ),
    ),
    Planted(
        "a filled copy that does not keep up",
        "servers: acknowledged pushes",
        "A copy was reported as filled, its connection broke, and pushes are acknowledged without it.",
        (
            Edit(
                "ps/copies.py",
                "        for server in self.receivers() if reported else ():\n",
                "        for server in self.receivers() if not reported else ():\n",
            ),
        ),
    ),
    Planted(
        "a report about another layout",
        "servers: fencing",
        "A late report of filled copies counts for the layout that follows, whose copies are not filled.",
        (
            Edit(
                "core/ps/decide.py",
                "    if command.layout != job.ps.layout.number or command.member not in due:\n",
                "    if command.layout > job.ps.layout.number or command.member not in due:\n",
            ),
        ),
    ),
    Planted(
        "a primary before its copy is filled",
        "servers: acknowledged pushes",
        "A server becomes the primary of a bucket while the copy is on its way.",
        (
            Edit(
                "core/ps/place.py",
                "    filled = bucket.incoming is not None and bucket.primary in copied\n",
                "    filled = bucket.incoming is not None\n",
            ),
        ),
    ),
    Planted(
        "a lost bucket's backup is not used",
        "servers: acknowledged pushes",
        "When a primary is lost, its bucket begins again on another server, though the backup has it.",
        (
            Edit(
                "core/ps/place.py",
                "    good = [bucket.primary, bucket.backup]\n",
                "    good = [bucket.primary, bucket.backup] if bucket.primary in alive else []\n",
            ),
        ),
    ),
    Planted(
        "a backup leaves before its primary has reported",
        "servers: acknowledged pushes",
        "A server drains while the only other one is lost without the coordinator's knowledge.",
        (
            Edit(
                "core/ps/place.py",
                "            may_go = new is None and self._confirmed.get(at) == bucket.primary\n",
                "            may_go = new is None\n",
            ),
        ),
    ),
    Planted(
        "a backup leaves after a report of another server",
        "servers: acknowledged pushes",
        "A server drains, and the primary that reported was lost: the copy that replaced it never reported.",
        (
            Edit(
                "core/ps/place.py",
                "            may_go = new is None and self._confirmed.get(at) == bucket.primary\n",
                "            may_go = new is None and at in self._confirmed\n",
            ),
        ),
    ),
    Planted(
        "a copy that is replaced goes at once",
        "servers: acknowledged pushes",
        "A bucket moves to a server, its backup is lost, and the server that it came from drops the second copy.",
        (
            Edit(
                "core/ps/place.py",
                "        good = [bucket.incoming, bucket.backup, bucket.primary]\n",
                "        good = [bucket.incoming, bucket.backup]\n",
            ),
        ),
    ),
    Planted(
        "buckets that stay where they were",
        "servers: convergence",
        "A server that was added receives no bucket.",
        (
            Edit(
                "core/ps/place.py",
                "        return name in counts and counts[name] > counts[low] + 1\n",
                "        return name in counts and counts[name] > counts[low] + BUCKETS\n",
            ),
        ),
    ),
)
