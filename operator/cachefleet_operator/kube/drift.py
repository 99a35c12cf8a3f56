"""Compares a live object with the manifest that was applied to it (pure).

Server-side apply would answer that too, at the price of a write request each time. Here the desired manifest is
compared as a subset: fields that others added are looked at in ``additions``. A quantity written another way ("1024Mi"
comes back as "1Gi") is no difference, nor is a zero value that the server leaves out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

DIGEST: Final = "cachefleet.io/applied"
"""Annotation with the digest of the applied manifest: it shows that a field left the manifest, a subset does not."""

Path = tuple[str, ...]
"""Way to a field: names, and entries of lists in brackets by what tells them apart."""
_Key = tuple[Any, ...]

_QUANTITY: Final = re.compile(r"^([+-]?[0-9.]{1,32})(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,2})?$")
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_NOT_LEFT_OUT: Final = frozenset(
    {"allowPrivilegeEscalation", "automountServiceAccountToken", "enableServiceLinks", "maxUnavailable"}
)
"""Fields that mean something else than their zero value where they are missing."""
# Fields by which entries of two lists are matched: the first line whose fields all entries have. Entries of mounts and
# ports have names, too, by which the API server does not tell them apart.
_NAMES: Final = (
    ("mountPath",),
    ("containerPort", "protocol"),
    ("containerPort",),
    ("port", "protocol"),
    ("port",),
    ("name",),
    ("uid",),
    ("path",),
    ("topologyKey", "whenUnsatisfiable"),
    ("ip",),
    ("devicePath",),
)


def stamped(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with its own digest as an annotation."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), DIGEST: digest}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def holds(desired: Any, live: Any) -> bool:
    """Whether ``live`` contains ``desired``: mappings as subsets, lists by the fields above or else entry by entry."""
    if isinstance(desired, Mapping):
        found = live if isinstance(live, Mapping) else {}
        return all(
            holds(value, found.get(name)) and (found.get(name) is not None or name not in _NOT_LEFT_OUT)
            for name, value in desired.items()
        )
    if _is_list(desired):
        return _list_holds(desired, live if _is_list(live) else ())
    if live is None:
        return not desired
    return bool(desired == live and isinstance(desired, bool) == isinstance(live, bool)) or _same_quantity(
        desired, live
    )


def differences(desired: Any, live: Any, path: Path = ()) -> Iterator[Path]:
    """Ways to the fields of ``desired`` that ``live`` does not hold."""
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        for name, value in desired.items():
            if not holds({name: value}, live):
                yield from differences(value, live.get(name), (*path, name))
    elif entries := identify(desired, live):
        wanted, found = entries
        for key, entry in wanted.items():
            if not holds(entry, found.get(key)):
                yield from differences(entry, found.get(key), (*path, entry_part(key)))
    elif path:
        yield path


def entry_part(key: _Key) -> str:
    """The part of a path that stands for an entry of a list."""
    return f"[{','.join(map(str, key))}]"


def identify(desired: Any, live: Any) -> tuple[dict[_Key, Any], dict[_Key, Any]] | None:
    """The entries of two lists by the fields that tell them apart; None where these are no lists of that kind."""
    if not desired or not _is_list(desired) or not _is_list(live):
        return None
    names = next((names for names in _NAMES if _named(desired, names) and _named(live, names)), None)
    return None if names is None else (_by(names, desired), _by(names, live))


def _by(names: Sequence[str], entries: Sequence[Any]) -> dict[_Key, Any]:
    return {tuple(entry[name] for name in names): entry for entry in entries}


def _list_holds(desired: Sequence[Any], live: Sequence[Any]) -> bool:
    if entries := identify(desired, live):
        wanted, found = entries
        return all(holds(entry, found.get(key)) for key, entry in wanted.items())
    return len(desired) == len(live) and all(map(holds, desired, live))


def _named(entries: Sequence[Any], names: Sequence[str]) -> bool:
    return all(
        isinstance(each, Mapping) and all(isinstance(each.get(name), str | int) for name in names) for each in entries
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _same_quantity(desired: Any, live: Any) -> bool:
    if isinstance(desired, bool) or isinstance(live, bool):
        return False
    first, second = _amount(desired), _amount(live)
    return first is not None and first == second


def _amount(value: Any) -> Decimal | None:
    if not isinstance(value, str | int | float):
        return None
    match = _QUANTITY.match(str(value))
    if match is None or match[1].count(".") > 1 or not any(map(str.isdigit, match[1])):
        return None
    suffix = match[2] or ""
    if suffix in _BINARY:
        return Decimal(match[1]) * Decimal(2) ** _BINARY[suffix]
    power = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    return Decimal(match[1]).scaleb(power)
