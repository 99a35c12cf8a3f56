"""The fleet key, read from its Secret (pure)."""

from __future__ import annotations

import base64
import binascii

from cachefleet_core.tenancy import FleetKey
from cachefleet_operator import names
from cachefleet_operator.kube.objects import Ref
from cachefleet_runtime.kubernetes import Object


class FleetKeyError(Exception):
    """The fleet key's Secret holds no valid key. It is never overwritten and must be repaired by hand."""


def parsed_fleet_key(secret: Object | None, ref: Ref) -> FleetKey:
    """The fleet key in a Secret. FleetKeyError where there is none."""
    if secret is None:
        raise FleetKeyError(f"Secret {ref.namespace}/{ref.name} is not there, and keys were made from it: put it back")
    try:
        return FleetKey.parse(base64.b64decode(secret["data"][names.FLEET_KEY]).decode())
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise FleetKeyError(f"Secret {ref.namespace}/{ref.name} holds no fleet key under {names.FLEET_KEY}") from error
