"""Entry point ``python -m cachefleet_operator``: reads settings from the environment, runs until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import uuid
from importlib.metadata import version

from cachefleet_core.environment.removed_variables import removed_lines
from cachefleet_operator.kube.objects import connect
from cachefleet_operator.metrics import Metrics
from cachefleet_operator.operator import Operator
from cachefleet_operator.operator_times import OperatorTimes
from cachefleet_operator.probes import application, serving
from cachefleet_operator.settings import Settings, SettingsError, load
from cachefleet_runtime import logs

log = logging.getLogger(__name__)


def main(times: OperatorTimes | None = None) -> int:
    """Run the operator; returns the exit code: 0 after SIGTERM or SIGINT, 2 for bad settings, 1 after a fatal error."""
    try:
        settings = load()
    except SettingsError as error:
        logs.refuse(str(error).splitlines())
        return 2
    logs.configure(settings.log_format, settings.log_level)
    for line in removed_lines("operator", os.environ):
        log.warning(line)
    try:
        asyncio.run(_run(settings, times or OperatorTimes()))
    except Exception:  # the process's root
        log.exception("the operator cannot go on")
        return 1
    return 0


async def _run(settings: Settings, times: OperatorTimes) -> None:
    work = asyncio.ensure_future(_operate(settings, times))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work


async def _operate(settings: Settings, times: OperatorTimes) -> None:
    metrics = Metrics(version("cachefleet"))
    identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    async with connect(settings.kubeconfig, metrics, request_seconds=times.request_seconds) as api:
        operator = Operator(api, settings, metrics, identity=identity, times=times)
        app = application(operator.alive, operator.ready, metrics)
        async with serving(app, settings.http_host, settings.http_port) as port:
            log.info("operator started", extra={"identity": identity, "port": port})
            await operator.run()


if __name__ == "__main__":
    sys.exit(main())
