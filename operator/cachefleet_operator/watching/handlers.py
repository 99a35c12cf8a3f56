"""Kopf's handlers and settings. A handler only passes on the key of the pool that an event is about.

``on.event`` handlers get every event and store nothing: no finalizer, no annotation, no patch by kopf.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import kopf

from cachefleet_core.pool.spec import GROUP, KIND, PLURAL, VERSION
from cachefleet_operator import names
from cachefleet_runtime.backoff import backoff
from cachefleet_runtime.kubernetes import LIST_PAGE, SERVICE_ACCOUNT, WATCH_INACTIVITY_SECONDS, WATCH_SHARE

CHILDREN: Final = (
    ("apps", "v1", "deployments"),
    ("", "v1", "services"),
    ("", "v1", "configmaps"),
    ("", "v1", "serviceaccounts"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("", "v1", "pods"),
)
"""Watched kinds that a pool owns. Not Secrets: the operator may read those by name only, and a deleted one is
made again at the next resync.
"""

LOGIN_SECONDS: Final = 1.0
LONGEST_LOGIN_SECONDS: Final = 20.0
"""Pauses before credentials that were refused are given again."""
CALM_SECONDS: Final = 60.0
"""After how long without a refusal the next one is a first one again."""

Enqueue = Callable[[str], None]


def registry(enqueue: Enqueue) -> kopf.OperatorRegistry:
    """Handlers that call ``enqueue`` with a pool's key "namespace/name", in kopf's thread."""
    handlers = kopf.OperatorRegistry()
    kopf.on.login(registry=handlers, id="login")(_logins(time.monotonic))

    def pool_event(namespace: str | None, name: str | None, **_: Any) -> None:
        enqueue(f"{namespace}/{name}")

    def child_event(namespace: str | None, body: kopf.Body, **_: Any) -> None:
        if pool := pool_of(body):
            enqueue(f"{namespace}/{pool}")

    kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)(pool_event)
    for group, version, plural in CHILDREN:
        kopf.on.event(group, version, plural, registry=handlers)(child_event)
    return handlers


def pool_of(child: Mapping[str, Any]) -> str:
    """Name of the pool that an object is of: its owner, or by its label, as of pods; "" where it is of none."""
    metadata = child.get("metadata") or {}
    owners = (each["name"] for each in metadata.get("ownerReferences") or () if each.get("kind") == KIND)
    return str(next(owners, "") or (metadata.get("labels") or {}).get(names.POOL_LABEL, ""))


def settings() -> kopf.OperatorSettings:
    """Settings for kopf as a watcher only: no peering, no events of its own, short timeouts to stop."""
    chosen = kopf.OperatorSettings()
    chosen.peering.standalone = True
    chosen.posting.enabled = False
    chosen.scanning.disabled = True  # the CRD is waited for before kopf starts; this saves two cluster-wide rights
    chosen.process.ultimate_exiting_timeout = None  # else it would end this process during a long exit
    chosen.queueing.exit_timeout = 1.0  # handlers end at once
    chosen.queueing.idle_timeout = 1.0
    # Retry for ever: a namespace that may not be read any more must not end the watches of the others.
    chosen.networking.error_backoffs = (1, 1, 2, 3, 5, 8, 13) + (20,) * 10_000
    # As the control plane watches: pages, an end that the server is asked for, and a bound on silence.
    chosen.watching.chunk_size = LIST_PAGE
    chosen.watching.server_timeout = int(WATCH_SHARE * WATCH_INACTIVITY_SECONDS)  # the API server takes whole seconds
    chosen.watching.inactivity_timeout = WATCH_INACTIVITY_SECONDS
    for group, _, plural in CHILDREN:
        # Of pods all that have a pool's label: some may be nobody's.
        ours = names.POOL_LABEL if plural == "pods" else f"{names.MANAGED_BY}={names.OPERATOR}"
        chosen.watching.label_selectors[group, plural] = ours
    return chosen


def _logins(clock: Callable[[], float]) -> Callable[..., Awaitable[kopf.ConnectionInfo | None]]:
    """A login handler that gives credentials again and again, with growing pauses, as often as they are refused.

    Kopf ends its watches for good, and goes on without them, where it is given credentials that were refused before:
    but a token that was refused for a while may be taken again. So each time they differ in their priority.
    """
    given, last = 0, float("-inf")

    async def login(**known: Any) -> kopf.ConnectionInfo | None:
        nonlocal given, last
        given = given + 1 if clock() - last < CALM_SECONDS else 0
        if given:
            await asyncio.sleep(backoff(given - 1, first=LOGIN_SECONDS, longest=LONGEST_LOGIN_SECONDS))
        last = clock()
        info = _credentials(**known)
        return info and replace(info, priority=next(priorities))

    priorities = itertools.count()
    return login


def _credentials(**given: Any) -> kopf.ConnectionInfo | None:
    """Credentials as ``KubernetesClient`` takes them: the service account where there is one, else the kubeconfig."""
    if not SERVICE_ACCOUNT.exists():
        return kopf.login_with_kubeconfig(**given)
    info = kopf.login_with_service_account(**given)
    return info and replace(info, server=server(os.environ))


def server(environment: Mapping[str, str]) -> str:
    """URL of the API server by IP address, so that it is found while the cluster's DNS is down."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
