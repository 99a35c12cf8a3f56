"""Faults of a fleet: the admin API's findings, and checks of each worker, and of each replica of a local fleet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import typer

from cachefleet_local.cli.admin_client import AbsentError, AdminClient
from cachefleet_local.cli.answers import Asker, Show
from cachefleet_local.cli.contexts.access import AdminAccess, Where, local_replicas
from cachefleet_local.cli.listing import Column, Item, Output
from cachefleet_local.cli.output.columns import FINDINGS
from cachefleet_local.cli.typed_answers import pools_of, workers_of
from cachefleet_local.cli_errors import Exit, FailureError

if TYPE_CHECKING:
    from cachefleet_core.fleet_status.pool_facts import PoolFacts
    from cachefleet_core.fleet_status.worker_facts import WorkerFacts

INFO: Final = "info"
_OLDER: Final = "the control plane is older than this command and tells no findings: whether all is well is not known"
READY_SECONDS: Final = 2.0
"""How long a replica may take to say whether it is ready."""
REPLICAS: Final = (
    Column("REPLICA", lambda replica: replica["name"]),
    Column("STATE", lambda replica: "not ready" if replica["problem"] else "ready"),
    Column("ADDRESS", lambda replica: replica["url"]),
)


def examine(show: Show) -> None:
    """Print each fault; exit status 1 where there is one that is no mere information."""
    asker = Asker(show.where)
    found, asked = asker(findings), asker(_fleet_facts)
    items = [*(found or []), *closer(*asked), *replica_findings(replicas_of(show.where))]
    show.rows(items, FINDINGS, empty="" if found is None else "no fault was found")
    if show.output is Output.TABLE:
        for item in items:
            typer.echo(f"{item['subject']}: {item['action']} ({item['docs']})", err=True)
    if found is None:
        raise FailureError([_OLDER])
    if any(item["severity"] != INFO for item in items):
        raise typer.Exit(Exit.FAILED)


def findings(client: AdminClient) -> list[Item] | None:
    """What the control plane finds; None where it is older than that."""
    try:
        return list(client.get("findings")["items"])
    except AbsentError:
        return None


def _fleet_facts(client: AdminClient) -> tuple[Sequence[PoolFacts], Sequence[WorkerFacts], Sequence[Item]]:
    try:
        certificates = client.get("certificates")["items"]
    except AbsentError:
        certificates = []
    return pools_of(client.get("pools")), workers_of(client.get("workers")), certificates


def closer(pools: Sequence[PoolFacts], workers: Sequence[WorkerFacts], certificates: Sequence[Item]) -> Iterator[Item]:
    """What the findings leave out, as it is nothing that an operator must act upon at once."""
    generations = {pool.key: pool.generation for pool in pools}
    for worker in workers:
        yield from _of_worker(worker, generations.get(worker.pool))
    for one in certificates:
        if not one["certified"]:
            yield _finding(
                f"profile {one['profile'][:19]} of {one['model']}",
                "NotCertified",
                f"turns of conversations are sent whole: {one['reason']}",
                "examine it again with `cachefleet doctor certify`",
                "docs/continuation.md",
            )


def _of_worker(worker: WorkerFacts, generation: int | None) -> Iterator[Item]:
    subject = f"worker {worker.id}"
    if worker.connected and generation is not None and worker.policy_generation < generation:
        yield _finding(
            subject,
            "PolicyBehind",
            f"its engine has the policy of generation {worker.policy_generation}, the pool is at {generation}",
            "a moment after a change this is as it should be; else read the agent's log",
            "docs/worker.md",
        )
    for capability in worker.capabilities:
        if capability.reason:
            yield _finding(
                subject,
                "CapabilityLacking",
                f"{capability.feature} is {capability.mode}: {capability.reason}",
                "nothing, unless you count on it",
                "docs/worker.md",
            )


def _finding(subject: str, reason: str, message: str, action: str, docs: str) -> dict[str, Any]:
    told = {"reason": reason, "message": message, "action": action, "docs": docs}
    return {"severity": INFO, "subject": subject} | told


def replicas_of(where: Where) -> list[Item]:
    """Name, address and problem of each replica, "" where it is ready; none where there are not several."""
    replicas = local_replicas(where)
    if len(replicas) < 2:
        return []
    with ThreadPoolExecutor(len(replicas)) as threads:
        problems = threads.map(_problem, replicas.values())
        return [
            {"name": name, "url": url, "problem": problem}
            for (name, url), problem in zip(replicas.items(), problems, strict=True)
        ]


def replica_findings(replicas: Sequence[Item]) -> Iterator[Item]:
    """A finding for each replica that is not ready."""
    for replica in replicas:
        if replica["problem"]:
            yield {
                "severity": "warning",
                "subject": f"replica {replica['name']}",
                "reason": "ReplicaNotReady",
                "message": replica["problem"],
                "action": f"one that has ended is started again; else read {replica['name']}.log",
                "docs": "docs/local.md#several-replicas",
            }


def _problem(url: str) -> str:
    try:
        AdminClient(AdminAccess(url, ""), seconds=READY_SECONDS).readiness()
    except FailureError as error:
        return error.lines[0]
    return ""
