"""The handlers of the pool: show it, set it, and take the reports of lent machines and nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from pliant.coordinator.api.app import STATUS, ApiError, Call, Handler
from pliant.coordinator.api.job_status import pool_status
from pliant.coordinator.pool_registry import PoolRegistry
from pliant.coordinator.service.pump import Service
from pliant.coordinator.store_thread import StoreThread
from pliant.core.allocate import Pool
from pliant.core.allocate.machines import LentMachine
from pliant.core.messages import Rejection
from pliant.core.model.job import Job
from pliant.wire import api
from pliant.wire.codec import encode_reply


class PoolHandlers:
    """A handler for every route of the pool. Only a coordinator that leads answers."""

    def __init__(
        self, service: Service, pools: PoolRegistry, reads: StoreThread, require_leadership: Callable[[], None]
    ) -> None:
        self._service = service
        self._pools = pools
        self._reads = reads
        self._require_leadership = require_leadership

    def by_name(self) -> dict[str, Handler]:
        return {
            "pool": self._show,
            "pool-set": self._set,
            "machine": self._report_machine,
            "cluster": self._report_cluster,
        }

    async def _show(self, _: Call) -> bytes:
        self._require_leadership()
        scheduler, pool = self._service.scheduler, self._pools.pool
        shown = scheduler.shown_pool
        if pool is not None and pool.is_lent:  # the pool of the last allocation may have old prices, or none lent
            lent = scheduler.machines.slots(time.monotonic()) + pool.cluster_slots
            pool = replace(pool, slots=shown.slots if shown is not None and shown.is_lent else lent)
        machines = scheduler.machines.lent(time.monotonic())
        return encode_reply(pool_status(pool, scheduler.shown, machines, self._job, time.time()))

    async def _set(self, call: Call) -> bytes:
        assert isinstance(call.body, Pool)
        self._require_leadership()
        await self._reads.call(partial(self._pools.set, call.body))
        self._service.scheduler.pool = self._pools.pool
        return await self._show(call)

    async def _report_cluster(self, call: Call) -> bytes:
        assert isinstance(call.body, api.ClusterReport)
        self._require_leadership()
        await self._reads.call(partial(self._pools.set_cluster_slots, call.body.slots))
        self._service.scheduler.pool = self._pools.pool
        return await self._show(call)

    async def _report_machine(self, call: Call) -> bytes:
        assert isinstance(call.body, LentMachine)
        self._require_leadership()
        found = self._service.scheduler.report_machine(call.body, self._job, time.monotonic())
        if isinstance(found, Rejection):
            raise ApiError(STATUS[found.code], found.code, found.why)
        orders = (api.SlotOrder() if job is None else api.SlotOrder(job.name, job.spec.script) for job in found)
        return encode_reply(api.MachineOrders(tuple(orders)))

    def _job(self, name: str) -> Job | None:
        found = self._service.job(name)
        return None if found is None else found[0]
