"""Control planes that know each other: each has a name, and a pool says by ``spec.controlPlane`` which serves it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from cachefleet_core.pool.section import DNS_LABEL, PATTERN_WORDS

MOST_CONTROL_PLANES: Final = 64
MAX_NAME: Final = 63
EXAMPLE: Final = '{"b": "http://cachefleet-b-gateway:8080"}'

BASE_URL: Final = r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([-.A-Za-z0-9]{0,251}[A-Za-z0-9])?)(:[1-9][0-9]{0,4})?/?"

ControlPlanes = Mapping[str, str]
"""Base URLs of their gateways, by name."""


def parse_control_planes(text: str) -> dict[str, str]:
    """Control planes from JSON such as ``{"b": "http://gateway-b:8080"}``; none from "". ValueError."""
    try:
        given = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(given, dict) or len(given) > MOST_CONTROL_PLANES:
        raise ValueError(f"must be a mapping of at most {MOST_CONTROL_PLANES} names to addresses, {EXAMPLE}")
    for name, url in given.items():
        if not is_control_plane_name(name):
            raise ValueError(f"{name!r} must be text of 1 to {MAX_NAME} characters: {PATTERN_WORDS[DNS_LABEL]}")
        if not isinstance(url, str) or re.fullmatch(BASE_URL, url) is None:
            raise ValueError(f"{name}: {url!r} must be the address of a gateway, such as http://gateway-b:8080")
    return {name: url.rstrip("/") for name, url in given.items()}


def is_control_plane_name(name: str) -> bool:
    """Whether a pool may name a control plane so: a DNS label."""
    return len(name) <= MAX_NAME and re.fullmatch(DNS_LABEL, name) is not None
