"""The user's file of contexts, ``~/.config/cachefleet/config.yaml``. It has paths and addresses, no credentials."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cachefleet_local.cli.contexts.cluster_access import Cluster
from cachefleet_local.cli_errors import Exit, FailureError

FOLDER_VARIABLE: Final = "XDG_CONFIG_HOME"
_PATHS: Final = {"data_dir": "dataDir", "token_file": "tokenFile", "ca_file": "caFile"}
_CLUSTER: Final = {
    "kubeconfig": "kubeconfig",
    "context": "kubeContext",
    "namespace": "namespace",
    "service_account": "serviceAccount",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One control plane: that of a local fleet's data folder, one at a URL, or one in a cluster."""

    data_dir: Path | None = None
    url: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    cluster: Cluster | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts by name, and the one in use, "" for none."""

    items: Mapping[str, Context] = field(default_factory=dict)
    current: str = ""


def context_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the file is."""
    folder = environment.get(FOLDER_VARIABLE) or Path(environment.get("HOME", "~")).expanduser() / ".config"
    return Path(folder) / "cachefleet" / "config.yaml"


def named_context(name: str | None, environment: Mapping[str, str] = os.environ) -> Context:
    """The context of that name; without one the context in use, which may say nothing. FailureError."""
    path = context_path(environment)
    if not name and not path.exists():
        return Context()
    known = read_contexts(path)
    wanted = name or known.current
    if not wanted:
        return Context()
    if wanted not in known.items:
        names = ", ".join(sorted(known.items)) or "none"
        raise FailureError([f"there is no context {wanted} (known: {names}); see: cachefleet contexts"], Exit.BAD_INPUT)
    return known.items[wanted]


def read_contexts(path: Path) -> Contexts:
    """What the file says; nothing where it is not there. FailureError where it cannot be understood."""
    import yaml  # noqa: PLC0415 - of no use to commands of people without contexts

    try:
        document = yaml.safe_load(path.read_text()) or {}
        items = {str(name): _context(given) for name, given in (document.get("contexts") or {}).items()}
        return Contexts(items, str(document.get("current") or ""))
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise FailureError([f"{path}: no contexts can be read from it: {error}"], Exit.BAD_INPUT) from error


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the file atomically. FailureError."""
    import yaml  # noqa: PLC0415 - as above

    document = {
        "current": contexts.current,
        "contexts": {name: shown_context(one) for name, one in sorted(contexts.items.items())},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".config-", delete=False) as draft:
            draft.write(yaml.safe_dump(document, sort_keys=False))
        Path(draft.name).replace(path)
    except OSError as error:
        raise FailureError([f"{path} cannot be written: {error.strerror}"]) from error


def shown_context(context: Context) -> dict[str, Any]:
    """A context as the file has it."""
    paths = {shown: str(value) for name, shown in _PATHS.items() if (value := getattr(context, name))}
    if context.cluster is None:
        return ({"url": context.url} if context.url else {}) | paths
    own = ((shown, getattr(context.cluster, name)) for name, shown in _CLUSTER.items())
    return {"cluster": {shown: value for shown, value in own if value}} | paths


def _context(given: Any) -> Context:
    cluster = given.get("cluster")
    told = (
        None if cluster is None else Cluster(**{name: _text(cluster, shown) or "" for name, shown in _CLUSTER.items()})
    )
    paths = {name: Path(text) for name, shown in _PATHS.items() if (text := _text(given, shown))}
    if unknown := set(given) - {"cluster", "url", *_PATHS.values()}:
        raise ValueError(f"unknown field {min(unknown)!r}")
    return Context(url=_text(given, "url"), cluster=told, **paths)


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name}: {value!r} is no text")
    return value
