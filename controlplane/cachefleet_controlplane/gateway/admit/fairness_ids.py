"""Tenants of requests without keys: those that a gateway before this one names by a header.

Who has no keys believes whoever reaches the gateway, so the header separates tenants from each other and proves
nothing: none of them is trusted, and where keys are needed it means nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.tenants.directory import Directory
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import Header, has_any
from cachefleet_core.pool.section import PATTERN_WORDS, TENANT
from cachefleet_core.tenancy import DEFAULT_TENANT, TenantId

logger = logging.getLogger(__name__)

HEADER: Final = b"x-gateway-inference-fairness-id"
"""Of the Gateway API Inference Extension: whose share of the fleet a request uses."""
HEADERS: Final = frozenset({HEADER, b"x-llm-d-inference-fairness-id"})
"""With llm-d's newer name of it."""
MAX_LENGTH: Final = 128
"""Characters of an id, as of a tenant's name."""
MAX_IDS: Final = 256
"""Ids that become tenants in the life of a process; requests with further ones are the default tenant's."""
_NAME: Final = re.compile(TENANT)


class FairnessTenants:
    """The tenants that requests have named so far; at most MAX_IDS."""

    def __init__(self) -> None:
        self._ids: set[TenantId] = set()

    def tenant(self, headers: Iterable[Header], directory: Directory) -> TenantRecord:
        """The tenant of a request without a key: with the limits of the tenant of that name, where there is one.

        ApiError 400 for an id that cannot be a tenant's name.
        """
        if not has_any(headers, HEADERS):
            return directory.default()
        name = _read(*next(each for each in headers if each[0] in HEADERS))
        if name == DEFAULT_TENANT or not self._takes(name):
            return directory.default()
        known = directory.tenants.get(name)
        return TenantRecord(name=name) if known is None else replace(known, trusted=False)

    def _takes(self, name: TenantId) -> bool:
        if name in self._ids:
            return True
        if len(self._ids) >= MAX_IDS:
            return False
        self._ids.add(name)
        if len(self._ids) == MAX_IDS:
            logger.warning("%s: %d ids are in use, further ones count as the default tenant", HEADER.decode(), MAX_IDS)
        return True


def _read(header: bytes, given: bytes) -> TenantId:
    text = given.decode("latin-1")
    if len(text) > MAX_LENGTH or _NAME.fullmatch(text) is None:
        allowed = f"text of 1 to {MAX_LENGTH} characters: {PATTERN_WORDS[TENANT]}"
        raise ApiError(400, f"Header `{header.decode()}` must be {allowed}.", param=header.decode())
    return TenantId(text)
