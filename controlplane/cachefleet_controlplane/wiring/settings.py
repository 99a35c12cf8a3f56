"""Settings of the control plane: one frozen object, read once from ``CACHEFLEET_*`` variables at start.

Secrets are given as paths of files, never as values (a database URL may hold a password, so it is never shown).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from sqlalchemy import make_url

from cachefleet_controlplane.gateway.files.files_url import usable_files_url
from cachefleet_controlplane.index.block_index import MOST_BYTES
from cachefleet_controlplane.store.database import usable_url
from cachefleet_controlplane.wire.cross_origin import MAX_ORIGINS, is_origin
from cachefleet_core.environment.control_planes import (
    MAX_NAME,
    ControlPlanes,
    is_control_plane_name,
    parse_control_planes,
)
from cachefleet_core.pool.model_names import NameRules, parse_rules
from cachefleet_core.pool.section import DNS_LABEL, PATTERN_WORDS
from cachefleet_core.pool.spec import DEFAULT_CONTROL_PLANE

PREFIX = "CACHEFLEET_"
MIB = 1024 * 1024


def _names(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part for part in (piece.strip() for piece in value.split(",")) if part)
    return value


Port = Annotated[int, Field(ge=0, le=65535)]  # 0 takes a free port, for tests
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)]


class SettingsError(ValueError):
    """Settings that cannot be used; ``lines`` holds one line per problem: variable, value and what is allowed."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class Settings(BaseSettings):
    """What differs between installations; seconds and bytes unless a name says otherwise. What nobody changes is a
    constant beside its use (``replica_bounds`` for a whole replica).

    Each docstring ends with when to change the setting: docs/settings.md is made from it.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    # Where it listens. The internal port serves reports, the admin API, metrics and probes.
    gateway_host: str = "127.0.0.1"
    """Address that the gateway listens on. Set by the chart; :: to serve other machines."""
    gateway_port: Port = 8080
    """Port for clients; 0 takes a free one. Set by the chart; change it where the port is taken."""
    internal_host: str = "127.0.0.1"
    """Address of the internal port. Set by the chart; :: where agents run on other machines."""
    internal_port: Port = 8081
    """Port of reports, admin API, metrics and probes; 0 takes a free one. Set by the chart."""

    picker_port: int | None = Field(None, ge=0, le=65535)
    """Port on which Envoys ask where requests go (`ext_proc`), at the gateway's address and with the internal port's
    TLS; 0 takes a free one, none is opened where not set. Set by the chart where `controlPlane.picker.enabled`."""
    picker_fallbacks: int = Field(2, ge=0, le=2)
    """Workers after the chosen one that the picker names to a gateway. Set it to 0 for gateways that read one address
    and refuse a list, such as agentgateway."""

    tls_folder: Path | None = None
    """Folder of tls.crt, tls.key and ca.crt: the internal port serves TLS, and workers are verified. Set by the chart
    where `tls.enabled`."""
    gateway_tls_folder: Path | None = None
    """Folder of tls.crt and tls.key: the gateway's port serves TLS. Set by the chart; leave it where something before
    the gateway ends TLS."""

    # Where pools and their ready workers come from.
    pool_source: Literal["file", "kubernetes"] = "file"
    """Where pools and workers are read from. Set by the chart to `kubernetes`."""
    pool_file: Path | None = None
    """YAML of the pools, for the source `file`. Set by a fleet on one machine."""
    endpoints_file: Path | None = None
    """JSON of the workers of each pool, for the source `file`. Set by a fleet on one machine."""
    namespaces: Names = ()
    """Namespaces to watch, comma separated; none means all. Set it to bound one installation to some teams."""
    model_names: str = ""
    """JSON: the namespaces that may serve a model name that is asked for unqualified, by name, "*" for all others. Set
    it where teams must not take each other's model names."""
    inference_objectives: bool = False
    """Requests that name an InferenceObjective of the cluster have its priority. Set by the chart from
    `controlPlane.picker.inferencePools`."""
    control_plane_name: str = DEFAULT_CONTROL_PLANE
    """Its own name: it serves the pools that have it as `spec.controlPlane`. Set by the chart from
    `controlPlane.name`."""
    control_planes: str = Field("", max_length=65_536)
    """JSON: the base URLs of other control planes' gateways, by name: requests for their models are passed on to them.
    Set by the chart from `controlPlane.others`."""
    kubeconfig: Path | None = None
    """How the API server is reached where there is no service account. Set it outside of a cluster."""

    # Who may talk to it.
    fleet_key_file: Path
    """The fleet key, from which all other keys are derived. Set by the chart."""
    auth: Literal["file", "kubernetes"] = "file"
    """What checks the tokens of agents and of the admin API: files, or TokenReview. Set by the chart."""
    reports_token_file: Path | None = None
    """A token with which an agent may report as any worker, beside the one that each worker has from the fleet key. Set
    it where agents cannot have a token each."""
    admin_token_file: Path | None = None
    """The token of the admin API, for auth `file`. Set by a fleet on one machine."""
    api_keys: Literal["auto", "required"] = "auto"
    """Clients need a key: always, or (auto) as soon as any tenant has one, and from then on: as the store and its
    marker tell, so where both are lost nobody does. Set it to `required` wherever others can reach the gateway."""

    allowed_origins: Names = Field((), max_length=MAX_ORIGINS)
    """Origins whose pages may ask the gateway (CORS), comma separated, like https://app.example; `*` for all. Set by
    the chart from `controlPlane.gateway.allowedOrigins`."""

    # Deciding.
    policy: Literal["cacheAware", "leastLoaded", "roundRobin"] = "cacheAware"
    """How workers are chosen. Change it to compare policies."""
    knowledge: Literal["exact", "approximate", "load"] = "exact"
    """The most that decisions may know of a prompt: its blocks, its text, or nothing. Lower it where asking workers for
    block keys costs more than it gives."""
    """What computes block keys and holds the index; auto takes native code where it is installed. Set it to `native` to
    refuse to start without."""

    index_memory_bytes: int | None = Field(None, ge=64 * 1024 * 1024, le=MOST_BYTES)
    """Memory of the index of held blocks, some 23 bytes a block; a quarter as much may go to sent texts. Where not set,
    half of what the pod or the machine has, 8 GiB at most. Set it where something else needs that half."""

    # The gateway.
    gateway_threads: int = Field(1, ge=1, le=64)
    """Threads of the native transport. Raise it where one thread is busy all the time and the pod has more cores."""
    request_max_bytes: int = Field(32 * 1024 * 1024, ge=1024, le=1024 * 1024 * 1024)
    """The longest body of a request. Raise it for images and files in requests."""
    request_buffer_bytes: int | None = Field(None, ge=2048, le=1024 * 1024 * 1024 * 1024)
    """Bodies held at once, over all tenants; where not set, 256 MiB or eight of the longest allowed. Set it to the
    memory that the pod can spare."""
    request_body_seconds: float = Field(30, ge=0.1, le=600)
    """How long a request's whole body may take to arrive. Raise it with `REQUEST_MAX_BYTES`, or for slow lines."""
    upstream_idle_seconds: float = Field(600, ge=1, le=86400)
    """How long a worker may be silent within one answer. Raise it where whole answers or first tokens take longer."""
    upstream_connections: int = Field(1024, ge=1, le=65536)
    """Requests under way at workers, over all of them. Raise it where more run at once in the fleet."""
    websocket_connections: int = Field(2048, ge=0, le=65536)
    """Responses over WebSocket: open connections, 0 for none; each tenant as many as are free. Raise it for more
    clients, lower it to bound memory."""
    render_timeout_seconds: float = Field(5, ge=0.05, le=120)
    """How long a decision waits for a prompt's token ids or block keys. Raise it where workers render slowly, as
    engines on a CPU do."""
    renderer_urls: Names = ()
    """Addresses of renderers without a GPU, comma separated: asked for a prompt's ids before any worker. Set by the
    chart from `controlPlane.renderers`."""
    queue_requests: int = Field(256, ge=0, le=65536)
    """Requests that may wait for room on a worker, over all models; each as long as its pool allows. Lower it to refuse
    sooner, raise it for bursts."""
    max_attempts: int = Field(3, ge=1, le=16)
    """Workers tried for one request before its first byte. Raise it where workers come and go often."""
    withdraw_seconds: float = Field(5, ge=0, le=300)
    """How long new requests are taken after SIGTERM. Raise it where load balancers hear late of a pod that ends."""
    drain_seconds: float = Field(300, ge=0, le=3600)
    """How long answers under way may go on after that. Raise it where turns of agents take longer."""
    startup_seconds: float = Field(15, ge=0, le=300)
    """How long a replica that starts is not ready because agents of ready workers have not reported to it yet. Lower it
    to 0 where there is one replica."""
    replicas: int = Field(1, ge=1, le=64)
    """How many replicas of the control plane there are, this one included. Set by the chart."""

    # Conversations.
    continuation_canary_ratio: float = Field(0.01, ge=0, le=1)
    """The share of verified prefixes that are compared with a plain full render. Raise it after a change of model or
    template, lower it where rendering is scarce."""
    continuation_certify_chats: int = Field(20, ge=1, le=1000)
    """Random conversations by which a render profile is examined. Lower it where engines render slowly."""
    continuation_history_bytes: int = Field(8 * 1024 * 1024, ge=1024, le=64 * 1024 * 1024)
    """The longest input of a response that is stored. Raise it for long stored conversations."""
    continuation_responses: int = Field(20_000, ge=1, le=10_000_000)
    """Responses stored, over all tenants; those that expire first give way. Raise it with the database's room."""
    continuation_conversations: int = Field(100_000, ge=1, le=10_000_000)
    """Conversations whose checkpoints are stored. Raise it with the database's room."""

    # Hot prefixes, which new workers are told of; remembered in memory only.
    hot_prefixes: int = Field(64, ge=0, le=4096)
    """How many hot prefixes are remembered for new workers; 0 for none. Raise it where more system prompts are in
    use."""

    # Simulations, of requests that are remembered in memory only.
    recorded_request_bytes: int = Field(64 * 1024 * 1024, ge=0, le=16 * 1024 * 1024 * 1024)
    """Memory of the latest requests, for simulations; 0 for none. Raise it to simulate a longer time."""
    simulation_memory_bytes: int = Field(1024 * 1024 * 1024, ge=128 * 1024 * 1024, le=1024 * 1024 * 1024 * 1024)
    """How much memory the process of one simulation may take. Set it to what the pod can spare."""

    # Causes in prompts, from digests of their parts that are remembered in memory only.
    prompt_shape_bytes: int = Field(32 * 1024 * 1024, ge=0, le=16 * 1024 * 1024 * 1024)
    """Memory of the latest prompts' parts as keyed digests, to tell why prompts miss; 0 for none. Raise it where
    conversations go on after many others."""

    # The store.
    data_dir: Path = Path(".cachefleet/controlplane")
    """Folder of the database and its marker. Set by the chart."""
    access_marker_copy: Path | None = None
    """A file outside of the data folder that says that keys were made, should that folder be lost. Set by
    a fleet on one machine."""
    access_config_map: str = Field("", pattern=r"^([a-z0-9.-]+/[a-z0-9.-]+)?$")
    """NAMESPACE/NAME of a ConfigMap that says so in the cluster; empty for none. Set by the chart."""
    database_url: SecretStr = SecretStr("")
    """SQLAlchemy URL; empty means SQLite in the data folder. Set it to PostgreSQL for more than one replica."""
    shared_store: bool = False
    """All replicas are on one machine and use one data folder. Set by a fleet on one machine."""
    ephemeral_store: bool = False
    """The data folder ends with its pod: no keys are made in it, unless keys are required. Set by the chart."""
    decisions_max_rows: int = Field(20_000, ge=100, le=10_000_000)
    """Decisions kept. Raise it to look further back."""
    usage_days: int = Field(400, ge=1, le=3660)
    """How long what tenants used is remembered. Set it to what accounting needs."""
    audit_days: int = Field(365, ge=1, le=3660)
    """How long it is remembered who changed what. Set it to what audits ask for."""
    database_timeout_seconds: float = Field(2, ge=0.01, le=60)
    """How long the database may take to connect or to give up a lock. Raise it for a distant database."""

    # Batches, whose requests and answers are kept in the store, encrypted.
    batches: bool = False
    """Serve batches and their files. Set it where the database, which all replicas must share, has room for both."""
    files_url: str = ""
    """Object storage for their content: `s3://BUCKET/PATH`, `gs://`, `az://` or `file:///FOLDER`; empty keeps it in the
    database. Set it where files are large or many."""
    batch_file_bytes: int = Field(100 * MIB, ge=MIB, le=1024 * MIB)
    """The largest file that is uploaded. Raise it with the database's room."""
    batch_tenant_bytes: int = Field(1024 * MIB, ge=MIB, le=1024 * 1024 * MIB)
    """All files of a tenant, over which it uploads none. Raise it with the database's room."""
    batch_lines: int = Field(50_000, ge=1, le=200_000)
    """Requests of one batch. Raise it with the database's room."""
    batch_requests: int = Field(16, ge=0, le=1024)
    """Requests of batches that this replica has under way at once; 0: it runs none. Raise it for large fleets."""
    batch_free_percent: int = Field(25, ge=0, le=100)
    """Of a worker's KV cache, what must be free before it is sent requests of batches. Raise it to leave more to
    others, lower it to let batches take what is idle."""
    batch_file_days: int = Field(30, ge=1, le=365)
    """How long files and what batches made are kept. Lower it to what those who made a batch need to fetch it."""

    # Logs.
    log_format: Literal["json", "text"] = "text"
    """Form of log lines. Set it to `json` where logs are collected."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The least severe lines that are written. Lower it to DEBUG while looking for a problem."""
    access_log: bool = False
    """A line for each request to the gateway, without anything of prompts. Set it where nothing before it has one."""

    @property
    def buffer_bytes(self) -> int:
        """Bodies held at once: 256 MiB, or eight of the longest allowed, unless set."""
        return self.request_buffer_bytes or max(256 * 1024 * 1024, 8 * self.request_max_bytes)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if problems := self._missing() + self._unusable():
            raise ValueError("\n".join(problems))
        return self

    def _unusable(self) -> list[str]:
        checks: dict[str, Callable[[], object]] = {
            "database_url": lambda: usable_url(self.url),
            "model_names": lambda: self.name_rules,
            "control_planes": lambda: self.others,
            "files_url": lambda: usable_files_url(self.files_url),
        }
        for name, check in checks.items():
            try:
                check()
            except ValueError as error:
                return [f"{_variable(name)}: {error}"]
        if not is_control_plane_name(own := self.control_plane_name):
            words = f"text of 1 to {MAX_NAME} characters: {PATTERN_WORDS[DNS_LABEL]}"
            return [f"{_variable('control_plane_name')}: got {own!r}, allowed: {words}"]
        if self.buffer_bytes < (least := 2 * self.request_max_bytes):
            got = f"got {self.request_buffer_bytes}, allowed: from {least}, twice {_variable('request_max_bytes')}"
            return [f"{_variable('request_buffer_bytes')}: {got}"]
        if wrong := [origin for origin in self.allowed_origins if not is_origin(origin)]:
            words = "origins like https://app.example or http://localhost:3000, comma separated, or *"
            return [f"{_variable('allowed_origins')}: got {wrong[0]!r}, allowed: {words}"]
        if self.batches and self.private_store:
            return [f"{_variable('batches')}: needs a database that all {self.replicas} replicas share"]
        allowed = "addresses like http://renderer:8000, comma separated"
        wrong = [url for url in self.renderer_urls if not is_base_url(url)]
        return [f"{_variable('renderer_urls')}: got {url!r}, allowed: {allowed}" for url in wrong]

    def _missing(self) -> list[str]:
        needed = {
            "pool_source": ("pool_file", "endpoints_file"),
            "auth": ("admin_token_file",),
        }
        return [
            f"{_variable(name)}: is required when {_variable(switch)} is 'file'"
            for switch, names in needed.items()
            if getattr(self, switch) == "file"
            for name in names
            if getattr(self, name) is None
        ]

    @property
    def url(self) -> str:
        """The database's URL; holds a password where the user gave one."""
        return self.database_url.get_secret_value() or f"sqlite:///{self.data_dir / 'controlplane.db'}"

    @property
    def name_rules(self) -> NameRules:
        """Which namespaces may serve which unqualified model names."""
        return parse_rules(self.model_names)

    @property
    def others(self) -> ControlPlanes:
        """Base URLs of the gateways of other control planes, by name."""
        given = parse_control_planes(self.control_planes)
        return {name: url for name, url in given.items() if name != self.control_plane_name}

    @property
    def private_store(self) -> bool:
        """There are other replicas, and what this one writes into its database none of them ever sees."""
        return self.replicas > 1 and self._is_file and not self.shared_store

    @property
    def store_ends_with_pod(self) -> bool:
        """What is written into the database is gone with this pod."""
        return self.ephemeral_store and self._is_file

    @property
    def _is_file(self) -> bool:
        return make_url(self.url).get_backend_name() == "sqlite"


def load() -> Settings:
    """Read the settings from this process's environment. SettingsError."""
    try:
        return Settings()
    except ValidationError as error:
        raise SettingsError([line for e in error.errors(include_url=False) for line in _lines(e)]) from None


def _variable(field: str) -> str:
    return PREFIX + field.upper()


def _lines(error: ErrorDetails) -> list[str]:
    if not error["loc"]:
        return str(error["msg"]).removeprefix("Value error, ").splitlines()
    field = str(error["loc"][0]).removeprefix(PREFIX).lower()
    info = Settings.model_fields[field]
    if error["type"] == "missing":
        return [f"{_variable(field)}: is required: {allowed(info)}"]
    return [f"{_variable(field)}: got {error['input']!r}, allowed: {allowed(info)}"]


def is_base_url(url: str) -> bool:
    """Whether it is the address of a server, without path, query or user."""
    try:
        parts = urlsplit(url)
        known = url.startswith(("http://", "https://")) and url.isascii() and bool(parts.hostname)
        known = known and parts.port != 0 and not parts.netloc.endswith(":")
    except ValueError:
        return False
    return known and not (parts.query or parts.fragment or parts.username or parts.path.strip("/"))


def allowed(info: FieldInfo) -> str:
    """What a setting may be."""
    kind: Any = info.annotation
    if choices := getattr(kind, "__args__", ()):
        texts = [repr(choice) for choice in choices if isinstance(choice, str)]
        if texts:
            return "one of " + ", ".join(texts)
    kinds = {int: "a whole number", float: "a number"}
    if kind in kinds:
        return kinds[kind] + _range(info)
    return "the path of a file" if kind is Path else "text"


def _range(info: FieldInfo) -> str:
    low = next((m.ge for m in info.metadata if hasattr(m, "ge")), None)
    high = next((m.le for m in info.metadata if hasattr(m, "le")), None)
    return f" from {low} to {high}" if low is not None else ""
