"""The operator's settings: one frozen object, read once from ``CACHEFLEET_*`` environment variables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from cachefleet_core.environment.control_planes import parse_control_planes
from cachefleet_core.pool.model_names import NameRules, parse_rules
from cachefleet_core.pool.section import ObjectName
from cachefleet_core.pool.spec import DEFAULT_CONTROL_PLANE

PREFIX = "CACHEFLEET_"
MAX_PORT = 65_535
DnsLabel = Annotated[str, Field(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


def _names(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part for part in (piece.strip() for piece in value.split(",")) if part)
    return value


_PEER = {"namespaceSelector", "podSelector", "ipBlock"}


def _peers(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        peers = json.loads(value)
    except ValueError as error:
        raise ValueError(f"must be JSON: {error}") from None
    if not isinstance(peers, list) or not all(isinstance(one, dict) and one and one.keys() <= _PEER for one in peers):
        raise ValueError(f"must be a list of a NetworkPolicy's peers, each of {', '.join(sorted(_PEER))}")
    return peers


class SettingsError(ValueError):
    """Settings that cannot be used; the text has one line for each problem."""


class Settings(BaseSettings):
    """What differs between installations; seconds unless a name says otherwise. What nobody changes is in
    ``operator_times``, or a constant beside its use.

    Each docstring ends with when to change the setting: docs/settings.md is made from it.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    # Cluster access and scope.
    kubeconfig: Path | None = Field(default=None, validation_alias="KUBECONFIG")
    """How the API server is reached where there is no service account; one file. Set it outside of a cluster."""
    operator_namespace: DnsLabel = "cachefleet-system"
    """Where the operator runs: its Lease and the fleet key live here. Set by the chart."""
    namespaces: Annotated[tuple[DnsLabel, ...], NoDecode, BeforeValidator(_names)] = ()
    """Namespaces whose pools it reconciles, comma separated; none means all. Set it to bound one installation to some
    teams."""

    model_names: str = Field(default="", max_length=65_536)
    """JSON: the namespaces that may serve a model name that is asked for unqualified, by name, "*" for all others. Set
    it where teams must not take each other's model names."""

    # Worker pods.
    agent_image: str = Field(min_length=1, max_length=1024)
    """Image of the agent and the plugin. Set by the chart."""
    agent_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    """When that image is pulled; empty for Kubernetes' own default. Set by the chart from `image.pullPolicy`."""
    image_pull_secrets: Annotated[tuple[ObjectName, ...], NoDecode, BeforeValidator(_names), Field(max_length=16)] = ()
    """Secrets to pull images with, comma separated; each in the namespace of the pool. Set by the chart from
    `image.pullSecrets`."""
    control_plane_name: DnsLabel = DEFAULT_CONTROL_PLANE
    """Name of the control plane that it works for: it reconciles the pools that have it as `spec.controlPlane`, and no
    others. Set by the chart from `controlPlane.name`."""
    control_planes: str = Field(default="", max_length=65_536)
    """JSON: other control planes, as the control plane has them; of pools that name neither these nor its own, events
    tell. Set by the chart from `controlPlane.others`."""
    control_plane: str = Field(default="", max_length=512)
    """Host and port under which agents look the control plane's replicas up; where empty, its Service beside the
    operator. Set by the chart."""
    worker_peers: Annotated[tuple[dict[str, Any], ...], NoDecode, BeforeValidator(_peers), Field(max_length=64)] = ()
    """Who may connect to workers: JSON of a NetworkPolicy's peers, the control plane and Prometheus among them. None:
    no NetworkPolicy is made, and one made before bounds nothing any more. Set by the chart."""
    pod_identity: Literal["fixed", "cluster"] = "fixed"
    """Who chooses user, group, fsGroup and seccomp profile of worker pods: the operator, or the cluster. Set by the
    chart; `cluster` on OpenShift."""
    shared_memory_mib: int = Field(default=4096, ge=160, le=1_048_576)
    """Bound on a worker's /dev/shm; what is written there counts as the pod's memory. Raise it for engines of many
    devices."""
    worker_start_seconds: int = Field(default=3600, ge=60, le=86_400)
    """How long an engine may take from its start to its first answer. Raise it where downloads of weights take
    longer."""
    worker_drain_seconds: int = Field(default=120, ge=1, le=86_400)
    """How long a worker that is to go lets running requests end. Raise it where answers take longer."""
    worker_shutdown_seconds: int = Field(default=30, ge=0, le=3600)
    """How long vLLM itself then waits for what still runs; 0 cuts it off. Lower it where pods must go sooner."""

    # Reconciling.
    lease_name: DnsLabel = "cachefleet-operator"
    """Name of the Lease that one operator holds. Set by the chart; change it for a second operator in the namespace."""
    workers: int = Field(default=4, ge=1, le=64)
    """Pools reconciled at the same time. Raise it for hundreds of pools."""
    resync_seconds: float = Field(default=300, ge=1, le=86_400)
    """How often every pool is looked at, event or not. Raise it to ask the API server for less."""

    # Facts about pools from the control plane; none without an address.
    admin_url: str = Field(default="", max_length=512, pattern=r"^(https?://\S+)?$")
    """Where its admin API is: scheme, host and port. Set by the chart."""
    admin_token_file: Path | None = None
    """The projected service-account token, audience cachefleet; read again for every question. Set by the chart."""

    # Gateway API.
    picker_service: str = Field(default="", max_length=69, pattern=r"^([a-z]([-a-z0-9]*[a-z0-9])?:[1-9][0-9]{0,4})?$")
    """NAME:PORT of the endpoint picker's Service, in pools' namespaces, to which InferencePools refer; where empty,
    none are made. Set by the chart from `controlPlane.picker.inferencePools`."""

    # TLS between agents, operator, control plane and workers.
    tls: Literal["off", "issued", "existing"] = "off"
    """Whose certificates are used: this operator's own, or those in Secrets that somebody else writes. Set by the
    chart."""
    tls_secret: ObjectName = "cachefleet-controlplane-tls"  # noqa: S105  # a name
    """Secret of the control plane's certificate, in the operator's namespace; written where tls is issued. Set by the
    chart."""
    tls_worker_secret: Annotated[str, Field(max_length=253)] = ""
    """Where tls is existing: Secret of workers' certificates, in each pool's namespace; where empty, NAME-worker-tls.
    Set by the chart."""
    tls_certificate_days: int = Field(default=90, ge=1, le=825)
    """How long a server's certificate is valid; renewed after two thirds of it. Lower it where rules ask for that."""
    tls_authority_days: int = Field(default=1825, ge=10, le=7300)
    """How long the authority is valid; renewed when a fifth of it is left. Lower it where rules ask for that."""

    # Probes and metrics.
    http_host: str = "::"
    """Address of probes and metrics, :: for all of both families. Set it to 127.0.0.1 outside of a cluster."""
    http_port: int = Field(default=8080, ge=0, le=MAX_PORT)
    """Port of probes and metrics; 0 takes a free one. Set by the chart."""

    # Logs.
    log_format: Literal["json", "text"] = "json"
    """Form of log lines. Set it to `text` where people read them."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The least severe lines that are written. Lower it to DEBUG while looking for a problem."""

    @model_validator(mode="after")
    def _sound_names(self) -> Self:
        try:
            parse_rules(self.model_names)
        except ValueError as error:
            raise ValueError(f"{PREFIX}MODEL_NAMES: {error}") from None
        try:
            parse_control_planes(self.control_planes)
        except ValueError as error:
            raise ValueError(f"{PREFIX}CONTROL_PLANES: {error}") from None
        return self

    @model_validator(mode="after")
    def _sound_picker(self) -> Self:
        if self.picker and self.picker[1] > MAX_PORT:
            raise ValueError(f"{PREFIX}PICKER_SERVICE: a port is from 1 to {MAX_PORT}")
        return self

    @model_validator(mode="after")
    def _authority_outlives(self) -> Self:
        if self.tls_authority_days < 5 * self.tls_certificate_days:
            raise ValueError(
                "CACHEFLEET_TLS_AUTHORITY_DAYS must be at least five times CACHEFLEET_TLS_CERTIFICATE_DAYS: "
                "certificates must end before the authority that signed them is replaced"
            )
        return self

    @property
    def serves_tls(self) -> bool:
        """Whether workers and the control plane serve TLS."""
        return self.tls != "off"

    @property
    def picker(self) -> tuple[str, int] | None:
        """Name and port of the endpoint picker's Service; None where no InferencePools are made."""
        name, _, port = self.picker_service.partition(":")
        return (name, int(port)) if name else None

    @property
    def name_rules(self) -> NameRules:
        """Which namespaces may serve which unqualified model names."""
        return parse_rules(self.model_names)

    @property
    def known_control_planes(self) -> frozenset[str]:
        """Names of all control planes that it knows, its own among them."""
        return frozenset({self.control_plane_name, *parse_control_planes(self.control_planes)})

    @property
    def control_plane_address(self) -> str:
        """Host and port of the headless Service behind which the control plane's replicas are."""
        return self.control_plane or f"cachefleet-controlplane-headless.{self.operator_namespace}.svc:8081"


def load() -> Settings:
    """Settings from the environment; SettingsError with one line for each missing or invalid variable."""
    try:
        return Settings()
    except ValidationError as error:
        lines = [_line(".".join(map(str, e["loc"])), e["msg"]) for e in error.errors(include_url=False)]
        raise SettingsError("\n".join(lines)) from None


def _line(field: str, message: str) -> str:
    text = message.removeprefix("Value error, ")
    if not field:
        return text
    variable = field.upper() if field.upper().startswith(PREFIX) else f"{PREFIX}{field.upper()}"
    return f"{variable}: {text}"
