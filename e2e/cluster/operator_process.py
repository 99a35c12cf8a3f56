"""Operators as real processes, to be stopped, frozen and killed.

They are forked from a server process that has imported everything already: kopf and the Kubernetes client take
seconds to import, and the tests start dozens of operators.
"""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, Self

from cachefleet_local.fleet.ports import take_ports
from cachefleet_operator.operator_times import OperatorTimes
from e2e.cluster.accounts import Account
from e2e.cluster.processes import die_with_parent

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["cachefleet_operator.__main__", "e2e.cluster.operator_process"])

PATIENT: Final = OperatorTimes(
    retry_first_seconds=0.1,
    retry_longest_seconds=1,
    discovery_seconds=0.2,
    # However busy the machine is, a leader stays one unless a test is about that.
    lease_seconds=90,
    renew_seconds=60,
    stop_seconds=20,
)
TIMES: Final = frozenset(field.name for field in fields(OperatorTimes))


class OperatorProcess:
    """One operator. Use as a context manager; leaving it kills what still runs."""

    def __init__(
        self, kubeconfig: Path, log: Path, *, namespace: str, account: Account | None = None, **settings: Any
    ) -> None:
        """``account``: as in a pod of it, instead of by kubeconfig; that needs root. ``settings``: times, too."""
        self.port = take_ports({"operator": 0})["operator"]
        self.log = log
        chosen: dict[str, Any] = {
            "agent_image": "example.org/agent:1",
            "operator_namespace": namespace,
            "namespaces": namespace,
            "http_host": "127.0.0.1",
            "http_port": self.port,
            "log_format": "text",
            "worker_peers": json.dumps([{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "gateway"}}}]),
            **{name: value for name, value in settings.items() if name not in TIMES},
        }
        times = replace(PATIENT, **{name: value for name, value in settings.items() if name in TIMES})
        environment = {f"CACHEFLEET_{name.upper()}": str(value) for name, value in chosen.items()}
        environment["KUBECONFIG"] = str(kubeconfig)
        if account:
            environment |= account.environment
        self._process = _context.Process(target=_run, args=(environment, str(log), account, times), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def stop(self) -> int | None:
        """As Kubernetes stops it; its exit code."""
        self._process.terminate()
        self._process.join(60)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self._process.join(60)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def metric(self, sample: str) -> float:
        """The value of one sample of its metrics, 0 where there is none."""
        lines = self.probe("/metrics")[1].splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{sample} ")), 0.0)

    @property
    def leads(self) -> bool:
        return self.metric("cachefleet_operator_leading") == 1

    def probe(self, path: str) -> tuple[int, str]:
        """Status and text of one of its HTTP routes; status 0 where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""


def _run(environment: Mapping[str, str], log: str, account: Account | None, times: OperatorTimes) -> None:
    die_with_parent()
    os.environ.update(environment)
    if account:
        account.mount()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    from cachefleet_operator.__main__ import main  # noqa: PLC0415  # preloaded in the fork server, unwanted here

    sys.exit(main(times))
