"""The handlers of submissions: check the image and the sender, let the core decide, store, answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from pliant.coordinator.api.app import STATUS, ApiError, Call, Handler
from pliant.coordinator.store_thread import StoreThread
from pliant.coordinator.submission_registry import SubmissionRegistry
from pliant.core import submissions as s
from pliant.core.messages import Code, Rejection
from pliant.wire import api
from pliant.wire.codec import encode_reply

STATUS_MAX = 1000  # characters of the operator's words


class SubmissionHandlers:
    """A handler for every route of submissions. Only a coordinator that leads changes or reads them."""

    def __init__(
        self, registry: SubmissionRegistry, reads: StoreThread, require_leadership: Callable[[], None]
    ) -> None:
        self._registry = registry
        self._reads = reads
        self._require_leadership = require_leadership

    def by_name(self) -> dict[str, Handler]:
        return {
            "submit": self._submit,
            "submission": self._one,
            "submission-stop": self._stop,
            "submissions": self._list,
            "submission-report": self._report,
        }

    async def _submit(self, call: Call) -> bytes:
        assert isinstance(call.body, s.Submission)
        assert call.grant is not None
        self._require_leadership()
        wanted, token = call.body, call.grant.id
        if not self._registry.images:
            why = "this coordinator accepts no submissions; start it with `pliant coordinator --accept-submissions`"
            raise ApiError(403, "submissions-off", why)
        if not s.bad_submission(wanted) and not s.allows_image(self._registry.images, wanted.image):
            why = f"this coordinator does not accept the image {wanted.image}; use one of its --accept-submissions"
            raise ApiError(403, "image-not-allowed", why)
        return await self._change(lambda known: s.accept(known, wanted, token, time.time()))

    async def _stop(self, call: Call) -> bytes:
        assert isinstance(call.body, api.SubmissionStop)
        assert call.grant is not None
        why = call.body.why
        token = None if call.grant.scope is api.Scope.ADMIN else call.grant.id
        return await self._change(lambda known: s.stop(known, call.path["task"], token, why))

    async def _report(self, call: Call) -> bytes:
        assert isinstance(call.body, api.SubmissionReport)
        body = call.body
        answer = await self._change(lambda known: s.report(known, body.number, body.state, body.why, body.job))
        self._registry.status[body.number] = body.status[:STATUS_MAX]
        return answer

    async def _one(self, call: Call) -> bytes:
        await self._refresh()
        found = self._registry.known.find(call.path["task"])
        if found is None:
            raise ApiError(404, Code.UNKNOWN, f"there is no submission with task {call.path['task']}")
        return encode_reply(self._line(found))

    async def _list(self, _: Call) -> bytes:
        await self._refresh()
        going_on = [each for each in self._registry.known.entries if not each.state.is_over]
        fresh = s.SubmissionState.ACCEPTED
        lines = (
            api.OpenSubmission(self._line(each), each.wanted if each.state is fresh else None) for each in going_on
        )
        return encode_reply(api.SubmissionList(tuple(lines)))

    async def _refresh(self) -> None:
        self._require_leadership()
        await self._reads.call(self._registry.refresh)

    async def _change(self, decide: Callable[[s.Submissions], s.StoredSubmission | Rejection]) -> bytes:
        self._require_leadership()
        entry = await self._reads.call(partial(self._registry.change, decide))
        if isinstance(entry, Rejection):
            raise ApiError(STATUS[entry.code], entry.code, entry.why)
        return encode_reply(self._line(entry))

    def _line(self, entry: s.StoredSubmission) -> api.SubmissionLine:
        status = self._registry.status.get(entry.number, "")
        return api.SubmissionLine(
            entry.number, entry.wanted.task, entry.state, entry.why, entry.job, status, entry.made_at
        )
