"""Bodies for workers, changed member by member. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from cachefleet_controlplane.wire.json_members import Fields, encode

_fields = msgspec.json.Decoder(Fields)


def edited(body: bytes, changes: Mapping[str, Raw | None]) -> tuple[bytes, int]:
    """A body with these members, without those that are None; and how many it has then. It is one of ours: JSON."""
    fields = _fields.decode(body)
    for name, value in changes.items():
        if value is None:
            fields.pop(name, None)
        else:
            fields[name] = value
    return encode(fields), len(fields)
