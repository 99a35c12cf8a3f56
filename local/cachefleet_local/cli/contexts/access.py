"""Which control plane a command asks, and with which token."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from cachefleet_local.cli.contexts import cluster_access
from cachefleet_local.cli.contexts.cluster_access import Cluster
from cachefleet_local.cli.contexts.context_file import Context, named_context
from cachefleet_local.cli_errors import Exit, FailureError
from cachefleet_local.fleet.data_folder import DEFAULT_DATA_DIR, DataFolder

URL_VARIABLE: Final = "CACHEFLEET_ADMIN_URL"
CA_FILE_VARIABLE: Final = "CACHEFLEET_ADMIN_CA_FILE"
TOKEN_FILE_VARIABLE: Final = "CACHEFLEET_ADMIN_TOKEN_FILE"  # noqa: S105 - the name of a variable
CONTEXT_VARIABLE: Final = "CACHEFLEET_CONTEXT"


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Address of the control plane, and the token for its admin API."""

    url: str
    token: str = field(repr=False)
    authorities: str = ""
    """Certificates (PEM) that the control plane is verified by; those of the machine where empty."""


@dataclass(frozen=True, slots=True)
class Where:
    """Options that select the control plane; None where not given."""

    url: str | None = None
    token_file: Path | None = None
    data_dir: Path | None = None
    context: str | None = None
    cluster: Cluster | None = None
    """Of the plugin of kubectl."""

    def or_else(self, outer: Where | None) -> Where:
        """This, and what ``outer`` (of the group of commands) says beside it."""
        if outer is None:
            return self
        token_file = self.token_file or outer.token_file
        if self.url or self.data_dir or self.context:
            return replace(self, token_file=token_file, cluster=outer.cluster)
        return replace(outer, token_file=token_file)


def find_access(where: Where, environment: Mapping[str, str] = os.environ) -> AdminAccess:
    """Address and token: by options, else the environment, else the context in use, else the local fleet.

    FailureError (bad input) where none of them has it, or several control planes are named.
    """
    _check_one(where)
    base = _base(where, environment)
    if base.cluster:
        return _of_cluster(base.cluster, where)
    folder = DataFolder((where.data_dir or base.data_dir or DEFAULT_DATA_DIR).absolute())
    url = where.url or (None if where.data_dir else base.url) or _local_url(folder)
    token_file = where.token_file or (None if where.data_dir else base.token_file) or folder.admin_token_file
    return AdminAccess(url.rstrip("/"), _token(token_file), _authorities(base.ca_file))


def _check_one(where: Where) -> None:
    """A change meant for one control plane must not be made at another."""
    if where.data_dir and (where.context or where.cluster):
        other = "a cluster" if where.cluster else "--context"
        raise FailureError([f"--data-dir is of a local fleet: give it or {other}, not both"], Exit.BAD_INPUT)


def _base(where: Where, environment: Mapping[str, str]) -> Context:
    """What holds where no option says otherwise."""
    if where.cluster:
        return Context(cluster=where.cluster)
    if where.context:
        return named_context(where.context, environment)
    given = [environment.get(name) for name in (URL_VARIABLE, TOKEN_FILE_VARIABLE, CA_FILE_VARIABLE)]
    url, token_file, ca_file = given
    if not (url or where.url or where.data_dir):
        found = named_context(environment.get(CONTEXT_VARIABLE), environment)
        if found != Context():
            return found
    return Context(
        url=url or None,
        token_file=Path(token_file) if token_file else None,
        ca_file=Path(ca_file) if ca_file else None,
    )


def _of_cluster(cluster: Cluster, where: Where) -> AdminAccess:
    found = cluster_access.reached(cluster, url=where.url, with_token=where.token_file is None)
    token = found.token if where.token_file is None else _token(where.token_file)
    return AdminAccess(found.url, token, found.authorities)


def _token(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FailureError([f"cannot read the admin token from {file}"], Exit.BAD_INPUT) from error
    if not (token and token.isascii() and token.isprintable() and " " not in token):  # an error of HTTP would show it
        raise FailureError([f"{file} has no admin token: one line without blanks is allowed"], Exit.BAD_INPUT)
    return token


def _authorities(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        text = ""
    if "BEGIN CERTIFICATE" not in text:
        said = [f"{CA_FILE_VARIABLE}: no certificate can be read from {file}"]
        raise FailureError(said, Exit.BAD_INPUT)
    return text


def local_gateway(where: Where) -> str:
    """The gateway of the local fleet; "" where none runs, or another control plane is meant."""
    return str(_local_fleet(where).get("gateway", ""))


def local_replicas(where: Where) -> dict[str, str]:
    """Internal addresses of the control plane's replicas in the local fleet, by name; none as for ``local_gateway``."""
    replicas = _local_fleet(where).get("replicas")
    return {str(name): str(url) for name, url in replicas.items()} if isinstance(replicas, dict) else {}


def _local_fleet(where: Where) -> dict[str, object]:
    base = _base(where, os.environ)
    if where.url or base.cluster or (base.url and not where.data_dir):
        return {}
    folder = DataFolder((where.data_dir or base.data_dir or DEFAULT_DATA_DIR).absolute())
    try:
        return dict(json.loads(folder.fleet_file.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _local_url(folder: DataFolder) -> str:
    try:
        return str(json.loads(folder.fleet_file.read_text())["internal"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"no fleet runs on the data folder {folder.root}; start one with: cachefleet up POOL.yaml"
        others = "give --url, or name another control plane with: cachefleet contexts set NAME --url URL"
        raise FailureError([f"{what}, {others}"], Exit.BAD_INPUT) from error
