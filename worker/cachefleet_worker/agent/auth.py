"""Authorises requests to the agent's prompt routes by the worker key."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from cachefleet_worker.agent.wire.plugin_api import TOKEN_HEADER


def refusal(headers: Mapping[str, str], key: str) -> str:
    """Why these headers are refused, as a code; "" where they are accepted. Constant time for any wrong token."""
    if not key:
        return "no_worker_key"
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    given = headers.get(TOKEN_HEADER) or (bearer.strip() if scheme.lower() == "bearer" else "")
    if not given:
        return "no_token"
    return "" if hmac.compare_digest(given.encode(errors="replace"), key.encode()) else "wrong_token"
