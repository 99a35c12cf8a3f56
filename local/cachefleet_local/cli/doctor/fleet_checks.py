"""Faults of a fleet: the admin API's findings, and checks of each worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from cachefleet_local.cli.admin_client import AbsentError, AdminClient
from cachefleet_local.cli.answers import Asker, Show
from cachefleet_local.cli.listing import Item, Output
from cachefleet_local.cli.output.columns import FINDINGS
from cachefleet_local.cli.typed_answers import pools_of, workers_of
from cachefleet_local.cli_errors import Exit, FailureError

if TYPE_CHECKING:
    from cachefleet_core.fleet_status.pool_facts import PoolFacts
    from cachefleet_core.fleet_status.worker_facts import WorkerFacts

INFO: Final = "info"
_OLDER: Final = "the control plane is older than this command and tells no findings: whether all is well is not known"


def examine(show: Show) -> None:
    """Print each fault; exit status 1 where there is one that is no mere information."""
    asker = Asker(show.where)
    found, asked = asker(findings), asker(_fleet_facts)
    items = [*(found or []), *closer(*asked)]
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
