"""The operator's own metrics with made-up values, over HTTP: there is no cluster here that an operator could watch.

``e2e/cluster/test_operator_dashboard.py`` has a real operator.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import start_http_server

from cachefleet_local.fleet.ports import LOOPBACK, take_ports
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.metrics import Metrics
from e2e.console.prometheus import Target

_VERBS: Final = (("get", "PrefixCachePool", 200), ("patch", "Deployment", 200), ("patch", "Service", 409))


@contextmanager
def served(metrics: Metrics) -> Iterator[Target]:
    """Where they can be read; ended with the block."""
    port = take_ports({"operator": 0})["operator"]
    server, thread = start_http_server(port, LOOPBACK, metrics.registry)
    try:
        yield Target("operator", "operator-0", f"{LOOPBACK}:{port}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def operate(metrics: Metrics) -> None:
    """What an operator that leads records, twice a second, until it is cancelled."""
    chance = random.Random(7)
    ends = dt.datetime.now(dt.UTC) + dt.timedelta(days=60)
    metrics.leads(yes=True)
    metrics.watching()
    metrics.certificate(Ref("Secret", "default", "bench-worker-tls"), ends)
    conditions = {"Ready": "True", "BudgetAdmitted": "True", "HitRateMet": "False", "IndexFresh": "Unknown"}
    metrics.conditions("default", "bench", [{"type": kind, "status": value} for kind, value in conditions.items()])
    while True:
        metrics.reconciled(chance.choice(("done", "done", "wrote", "failed")), chance.uniform(0.01, 0.3))
        for verb, kind, status in _VERBS:
            metrics.requested(verb, kind, status, chance.uniform(0.002, 0.05))
        metrics.waiting.set(chance.randrange(3))
        if chance.random() < 0.3:
            metrics.unanswered("no_answer")
            metrics.noticed()
        await asyncio.sleep(0.5)
