"""Settings of the control plane: one frozen object, read once from ``CACHEFLEET_*`` variables at start.

Secrets are given as paths of files, never as values (a database URL may hold a password, so it is never shown).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from sqlalchemy import make_url

from cachefleet_controlplane.setting_values import allowed, is_base_url
from cachefleet_controlplane.store.database import usable_url
from cachefleet_core.native import Choice
from cachefleet_core.pool.model_names import NameRules, parse_rules
from cachefleet_runtime.kubernetes import LIST_PAGE, WATCH_INACTIVITY_SECONDS

PREFIX = "CACHEFLEET_"


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
    """Every bound of the control plane has its name here; seconds and bytes unless a name says otherwise."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    # Where it listens. The internal port serves reports, the admin API, metrics and probes.
    gateway_host: str = "127.0.0.1"
    gateway_port: Port = 8080
    internal_host: str = "127.0.0.1"
    internal_port: Port = 8081

    tls_folder: Path | None = None
    """Folder of tls.crt, tls.key and ca.crt: the internal port serves TLS, and workers are verified."""
    gateway_tls_folder: Path | None = None
    """Folder of tls.crt and tls.key: the gateway's port serves TLS."""

    # Where pools and their ready workers come from.
    pool_source: Literal["file", "kubernetes"] = "file"
    pool_file: Path | None = None
    endpoints_file: Path | None = None
    pool_file_poll_seconds: float = Field(0.5, ge=0.01, le=60)
    namespaces: Names = ()
    """Namespaces to watch, comma separated; none means all."""
    model_names: str = ""
    """JSON: the namespaces that may serve a model name that is asked for unqualified, by name, "*" for all others."""
    kubeconfig: Path | None = None
    """Used where there is no service account."""
    watch_page: int = Field(LIST_PAGE, ge=1, le=10_000)
    """Objects asked for in one page of a list."""
    watch_inactivity_seconds: float = Field(WATCH_INACTIVITY_SECONDS, ge=1, le=300)
    watch_backoff_seconds: float = Field(8, ge=1, le=300)
    """The longest pause before a failed list or watch is tried again."""

    # Who may talk to it.
    fleet_key_file: Path
    auth: Literal["file", "kubernetes"] = "file"
    reports_token_file: Path | None = None
    """A token with which an agent may report as any worker, beside the one that each worker has from the fleet key."""
    admin_token_file: Path | None = None
    review_timeout_seconds: float = Field(10, ge=0.1, le=60)

    api_keys: Literal["auto", "required"] = "auto"
    """Clients need a key: always, or (auto) as soon as any tenant has one, and from then on: as the store and its
    marker tell, so where both are lost nobody does."""
    tenants_poll_seconds: float = Field(2, ge=0.05, le=300)
    """How old may be what is known of tenants and keys that another replica changed."""

    # Deciding.
    policy: Literal["cacheAware", "leastLoaded", "roundRobin"] = "cacheAware"
    knowledge: Literal["exact", "approximate", "load"] = "exact"
    """The most that decisions may know of a prompt: its blocks, its text, or nothing."""
    backend: Choice = "auto"
    """What computes block keys and holds the index; auto takes native code where it is installed."""

    # The gateway.
    transport: Choice = "auto"
    """What moves the bytes of clients and workers; auto takes native code where it is installed."""
    gateway_threads: int = Field(1, ge=1, le=64)
    """Threads of the native transport."""
    request_max_bytes: int = Field(32 * 1024 * 1024, ge=1024, le=1024 * 1024 * 1024)
    request_buffer_bytes: int | None = Field(None, ge=2048, le=1024 * 1024 * 1024 * 1024)
    """Bodies held at once, over all tenants; see ``buffer_bytes``."""
    request_head_seconds: float = Field(10, ge=0.1, le=300)
    request_body_seconds: float = Field(30, ge=0.1, le=600)
    """How long a request's whole body may take to arrive."""
    request_stall_seconds: float = Field(10, ge=0.1, le=300)
    """How long nothing of a body that has begun may arrive."""
    reply_send_seconds: float = Field(120, ge=0.1, le=3600)
    """How long a client may take nothing of its answer before it counts as gone."""
    upstream_connect_seconds: float = Field(2, ge=0.1, le=60)
    upstream_idle_seconds: float = Field(600, ge=1, le=86400)
    """How long a worker may be silent within one answer."""
    upstream_connections: int = Field(1024, ge=1, le=65536)
    """Open connections to workers, over all of them."""
    websocket_connections: int = Field(2048, ge=0, le=65536)
    """Responses over WebSocket: open connections, 0 for none; each tenant as many as are free."""
    websocket_idle_seconds: float = Field(600, ge=1, le=86400)
    """How long such a connection may be open while nothing is asked on it."""
    websocket_seconds: float = Field(3600, ge=1, le=86400)
    """How long it may be open at all; an answer under way is ended first."""
    render_timeout_seconds: float = Field(5, ge=0.05, le=120)
    renderer_urls: Names = ()
    """Addresses of renderers without a GPU, comma separated: asked for a prompt's ids before any worker."""
    queue_requests: int = Field(256, ge=0, le=65536)
    """Requests that may wait for room on a worker, over all models; each as long as its pool allows."""
    max_attempts: int = Field(3, ge=1, le=16)
    """Workers tried for one request before its first byte."""
    withdraw_seconds: float = Field(5, ge=0, le=300)
    """How long new requests are taken after SIGTERM: whoever sends them here hears of it that late."""
    drain_seconds: float = Field(300, ge=0, le=3600)
    """How long answers under way may go on after that: turns of agents take minutes."""
    startup_seconds: float = Field(15, ge=0, le=300)
    """How long a replica that starts is not ready because agents of ready workers have not reported to it yet."""
    replicas: int = Field(1, ge=1, le=64)
    """How many replicas of the control plane there are, this one included."""

    # Conversations.
    continuation_canary_ratio: float = Field(0.01, ge=0, le=1)
    """The share of verified prefixes that are compared with a plain full render."""
    continuation_certify_chats: int = Field(20, ge=1, le=1000)
    """Random conversations by which a render profile is examined."""
    continuation_history_bytes: int = Field(8 * 1024 * 1024, ge=1024, le=64 * 1024 * 1024)
    """The longest input of a response that is stored."""
    continuation_responses: int = Field(20_000, ge=1, le=10_000_000)
    """Responses stored, over all tenants; those that expire first give way."""
    continuation_conversations: int = Field(100_000, ge=1, le=10_000_000)
    continuation_handles: int = Field(50_000, ge=1, le=10_000_000)
    """Beginnings of conversations whose handles are remembered; the least recently used are dropped first."""
    continuation_max_keys: int = Field(16_384, ge=1, le=1_000_000)
    """Block keys of one checkpoint."""
    continuation_store_seconds: float = Field(2, ge=0.01, le=60)
    """How long a turn waits for the store, before its prompt and before its end."""

    # Hot prefixes, which new workers are told of; remembered in memory only.
    hot_prefixes: int = Field(64, ge=0, le=4096)
    """How many are remembered; 0 for none."""
    hot_prefix_bytes: int = Field(16 * 1024 * 1024, ge=64 * 1024, le=1024 * 1024 * 1024)
    hot_prefix_half_life_seconds: float = Field(600, ge=1, le=86400)
    """After how long without a request one counts half."""
    hot_prefix_tokens: int = Field(1_048_576, ge=0, le=1_048_576)
    """How many tokens a new worker is to compute for them at most, within its pool's budget of idle blocks."""
    hot_prefix_seconds: float = Field(60, ge=0, le=3600)
    """How long that may take, at the pace of the workers there are."""

    # Simulations, of requests that are remembered in memory only.
    recorded_request_bytes: int = Field(64 * 1024 * 1024, ge=0, le=16 * 1024 * 1024 * 1024)
    """The latest requests are remembered in so many bytes; 0 for none."""
    simulation_seconds: float = Field(120, ge=1, le=600)
    """How long one simulation may take."""
    simulation_memory_bytes: int = Field(1024 * 1024 * 1024, ge=128 * 1024 * 1024, le=1024 * 1024 * 1024 * 1024)
    """How much memory the process of one simulation may take."""

    # Reports.
    report_connections: int = Field(4096, ge=1, le=65536)
    report_hello_seconds: float = Field(10, ge=0.1, le=300)
    """How long a new connection may take to say who it is."""

    # The admin API.
    admin_max_bytes: int = Field(1024 * 1024, ge=1024, le=64 * 1024 * 1024)

    # The store.
    data_dir: Path = Path(".cachefleet/controlplane")
    access_marker_copy: Path | None = None
    """A file outside of the data folder that says that keys were made, should that folder be lost."""
    database_url: SecretStr = SecretStr("")
    """SQLAlchemy URL; empty means SQLite in the data folder."""
    ephemeral_store: bool = False
    """The data folder ends with its pod: no keys are made in it, unless keys are required."""
    decisions_max_rows: int = Field(20_000, ge=100, le=10_000_000)
    decisions_queue: int = Field(4096, ge=16, le=1_000_000)
    """Decisions waiting to be written; what comes beyond is dropped and counted."""
    decisions_batch: int = Field(256, ge=1, le=4096)
    decisions_flush_seconds: float = Field(0.25, ge=0, le=60)
    usage_queue: int = Field(10_000, ge=16, le=1_000_000)
    """Sums of one hour, tenant and model waiting to be written; what comes beyond is dropped and counted."""
    usage_flush_seconds: float = Field(5, ge=0.01, le=300)
    usage_days: int = Field(400, ge=1, le=3660)
    """How long what tenants used is remembered."""
    audit_days: int = Field(365, ge=1, le=3660)
    """How long it is remembered who changed what."""
    audit_max_rows: int = Field(100_000, ge=100, le=10_000_000)
    database_timeout_seconds: float = Field(2, ge=0.01, le=60)
    database_retry_seconds: float = Field(5, ge=0.01, le=300)

    # Logs.
    log_format: Literal["json", "text"] = "text"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

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
        for name, check in (("database_url", lambda: usable_url(self.url)), ("model_names", lambda: self.name_rules)):
            try:
                check()
            except ValueError as error:
                return [f"{_variable(name)}: {error}"]
        if self.buffer_bytes < (least := 2 * self.request_max_bytes):
            got = f"got {self.request_buffer_bytes}, allowed: from {least}, twice {_variable('request_max_bytes')}"
            return [f"{_variable('request_buffer_bytes')}: {got}"]
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
    def private_store(self) -> bool:
        """There are other replicas, and what this one writes into its database none of them ever sees."""
        return self.replicas > 1 and self._is_file

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
