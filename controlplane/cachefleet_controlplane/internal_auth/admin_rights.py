"""Which right a request to the admin API needs: a table from method and path to verb and resource. Pure.

Resources are those of Kubernetes' API group ``cachefleet.io``: ``prefixcachepools``, which exist there, and others that
roles alone name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cachefleet_controlplane.internal_auth.authorizer import Asked
from cachefleet_core.pool.spec import PLURAL

ROUTING: Final = f"{PLURAL}/routing"
FLUSH: Final = f"{PLURAL}/flush"
TENANTS: Final = "tenants"
KEYS: Final = "tenants/keys"
DECISIONS: Final = "decisions"
AUDIT: Final = "auditentries"
NAME: Final = "{name}"
"""In a path: the name of the object that is asked about."""
_ANY: Final = "*"
_VERBS: Final = {"PUT": "update", "PATCH": "update", "POST": "update", "DELETE": "delete"}
"""Of requests that are not in the table, on pools."""

RIGHTS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "routing": {"GET": ("get", ROUTING), "PUT": ("update", ROUTING)},
    "flush": {"POST": ("create", FLUSH)},
    "decisions": {"GET": ("list", DECISIONS)},
    "decisions/export": {"GET": ("list", DECISIONS)},
    "decisions/stream": {"GET": ("watch", DECISIONS)},
    "decisions/*": {"GET": ("get", DECISIONS)},
    "prefixes": {"GET": ("list", DECISIONS)},
    "prompt-causes": {"GET": ("list", DECISIONS)},
    # These decide and change nothing: whoever may see decisions may ask for one.
    "explain": {"POST": ("list", DECISIONS)},
    "simulate": {"POST": ("list", DECISIONS)},
    "capacity/confirm": {"POST": ("list", DECISIONS)},
    "audit": {"GET": ("list", AUDIT)},
    "audit/export": {"GET": ("list", AUDIT)},
    "tenants": {"GET": ("list", TENANTS), "POST": ("create", TENANTS)},
    "tenants/{name}": {"GET": ("get", TENANTS), "PATCH": ("update", TENANTS), "DELETE": ("delete", TENANTS)},
    "tenants/{name}/keys": {"GET": ("get", KEYS), "POST": ("create", KEYS)},
    "tenants/{name}/keys/rotate": {"POST": ("update", KEYS)},
    "tenants/{name}/keys/*": {"DELETE": ("delete", KEYS)},
    "usage": {"GET": ("list", TENANTS)},
    "idle-cache": {"GET": ("list", TENANTS)},
    "contracts": {"GET": ("list", TENANTS)},
    "access": {"GET": ("list", TENANTS)},
    "access/open": {"POST": ("update", TENANTS)},
}
"""By path below the API's root and method: the verb and the resource. The first path that fits counts."""
_ROWS: Final = tuple((tuple(path.split("/")), methods) for path, methods in RIGHTS.items())


def asked(method: str, path: str) -> Asked:
    """The question for a request (``path`` below the API's root).

    What is not in the table needs a right on pools: one that is named in the path, else all.
    """
    parts = path.strip("/").split("/")
    for pattern, methods in _ROWS:
        if method in methods and _fits(pattern, parts):
            verb, resource = methods[method]
            names = (part for wanted, part in zip(pattern, parts, strict=True) if wanted == NAME)
            return Asked(verb, name=next(names, ""), resource=resource)
    match parts:
        case ["pools", namespace, name, *_]:
            return Asked(_VERBS.get(method, "get"), namespace, name)
        case _:
            return Asked(_VERBS.get(method, "list"))


def _fits(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    same = len(pattern) == len(parts)
    return same and all(wanted in {part, NAME, _ANY} for wanted, part in zip(pattern, parts, strict=True))
