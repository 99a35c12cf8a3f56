"""What others added to an object and changes its meaning: found, and taken away again (pure).

A server-side apply leaves fields alone that others manage, so an apply does not repair a selector, a list of ports or a
container that has gained an entry. Everything that is said of an object besides its metadata is therefore compared as
a whole, except what means nothing or is not ours:

- empty values, and the values that the API server fills in;
- annotations and labels, of the pods too: ``kubectl rollout restart`` sets one;
- whole containers and volumes beside ours, as admission webhooks add them;
- all that a ServiceAccount gains, which Kubernetes itself adds to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from cachefleet_operator.kube.drift import Path, entry_part, holds, identify

Manifest = dict[str, Any]

_NOT_COMPARED: Final = frozenset({"apiVersion", "kind", "metadata", "status"})
_ANY: Final = object()
_FILLED_IN: Final[Mapping[str, Any]] = {
    # Service
    "clusterIPs": _ANY,
    "internalTrafficPolicy": "Cluster",
    "ipFamilies": _ANY,
    "ipFamilyPolicy": _ANY,
    "sessionAffinity": "None",
    "type": "ClusterIP",
    # InferencePool
    "appProtocol": "http",
    # Pod template
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "serviceAccount": _ANY,  # the old name of serviceAccountName
    # Containers and probes
    "apiVersion": "v1",
    "divisor": "0",
    "failureThreshold": 3,
    "path": "/",
    "periodSeconds": 10,
    "procMount": "Default",
    "protocol": "TCP",
    "scheme": "HTTP",
    "successThreshold": 1,
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "timeoutSeconds": 1,
    # Volumes
    "defaultMode": 420,
    "expirationSeconds": 3600,
    "volumeMode": "Filesystem",
}
_PULL_POLICY: Final = "imagePullPolicy"
_TAG: Final = re.compile(r"[^:@]*(:(?P<tag>[^@]+))?(?P<digest>@.*)?")
"""The end of an image's name, after its last slash."""
_FREE_MAPPINGS: Final = frozenset({"annotations", "labels"})
_ZERO_COUNTS: Final = frozenset({"hostUsers", "securityContext"})
_FREE_LISTS: Final = frozenset({"containers", "initContainers", "volumes"})
_POD: Final[Path] = ("spec", "template", "spec")


def without_additions(desired: Mapping[str, Any], live: Mapping[str, Any]) -> Manifest | None:
    """The parts of the live object to write so that it says what ``desired`` does and no more, None for a part to be
    removed; None where nothing was added that changes its meaning.
    """
    if next(additions(desired, live), None) is None:
        return None
    content = _content(live)
    parts: Manifest = _mended(_content(desired), content, ())
    return dict.fromkeys(content) | parts


def additions(desired: Mapping[str, Any], live: Mapping[str, Any]) -> Iterator[Path]:
    """Ways to what was added to the live object and changes its meaning."""
    return iter(()) if desired["kind"] == "ServiceAccount" else _added(_content(desired), _content(live), ())


def _content(manifest: Mapping[str, Any]) -> Manifest:
    return {name: value for name, value in manifest.items() if name not in _NOT_COMPARED}


def _added(desired: Any, live: Any, path: Path) -> Iterator[Path]:
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        yield from _added_fields(desired, live, path)
    elif entries := identify(desired, live):
        wanted, found = entries
        free = path[-1] in _FREE_LISTS
        for key in found:
            if key in wanted:
                yield from _added(wanted[key], found[key], (*path, entry_part(key)))
            elif not free:
                yield (*path, entry_part(key))
    else:
        for pair in _pairs(desired, live):
            yield from _added(*pair, path)


def _added_fields(desired: Mapping[str, Any], live: Mapping[str, Any], path: Path) -> Iterator[Path]:
    harmless = _harmless_beside(desired)
    for name, value in live.items():
        if name in desired:
            yield from _added(desired[name], value, (*path, name))
        elif not harmless((*path, name), value):
            yield (*path, name)


def _mended(desired: Any, live: Any, path: Path) -> Any:
    """``desired`` with what is harmless in ``live``; in its words where both mean the same."""
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        harmless = _harmless_beside(desired)
        kept = {
            name: _mended(desired[name], value, (*path, name)) if name in desired else value
            for name, value in live.items()
            if name in desired or harmless((*path, name), value)
        }
        return kept | {name: value for name, value in desired.items() if name not in live}
    entries = identify(desired, live)
    if entries is None:
        pairs = _pairs(desired, live)
        return [_mended(*pair, path) for pair in pairs] or (live if holds(desired, live) else desired)
    wanted, found = entries
    free = path[-1] in _FREE_LISTS
    kept_entries = [
        _mended(wanted[key], entry, path) if key in wanted else entry
        for key, entry in found.items()
        if free or key in wanted
    ]
    return [*kept_entries, *(entry for key, entry in wanted.items() if key not in found)]


def _pairs(desired: Any, live: Any) -> list[tuple[Any, Any]]:
    """The entries of two lists as long as each other, which nothing but their places tells apart; else none."""
    lists = isinstance(desired, list | tuple) and isinstance(live, list | tuple) and len(desired) == len(live)
    return list(zip(desired, live, strict=True)) if lists else []


def _harmless_beside(desired: Mapping[str, Any]) -> Callable[[Path, Any], bool]:
    """Whether an addition to ``desired`` means nothing; when an image is pulled by default depends on its tag."""
    policy = _default_pull_policy(str(desired["image"])) if "image" in desired else ""
    return lambda path, value: value == policy if policy and path[-1] == _PULL_POLICY else _harmless(path, value)


def _default_pull_policy(image: str) -> str:
    """What the API server fills in for an image."""
    named = _TAG.fullmatch(image.rsplit("/", 1)[-1])
    moves = named is None or named["tag"] == "latest" or not (named["tag"] or named["digest"])
    return "Always" if moves else "IfNotPresent"


def _harmless(path: Path, value: Any) -> bool:
    if isinstance(value, bool | int) and _ZERO_COUNTS.intersection(path[-2:]):
        return False  # it takes the place of what the pod says
    if not value or _FREE_MAPPINGS.intersection(path[-2:]):
        return True
    if path[-1] == "restartPolicy":
        return path[:-1] == _POD and bool(value == "Always")  # of an init container it makes a sidecar
    default = _FILLED_IN.get(path[-1])
    return default is _ANY or bool(default == value)
