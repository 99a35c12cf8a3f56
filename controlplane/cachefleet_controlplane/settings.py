"""What the control plane is told at start: one frozen object, read once from ``CACHEFLEET_*`` variables.

Secrets come as paths to files, never as values (a database URL may hold a password, so it is never shown).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from cachefleet_controlplane.store.database import usable_url
from cachefleet_core.native import Choice

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

    # Where pools and their ready workers come from.
    pool_source: Literal["file", "kubernetes"] = "file"
    pool_file: Path | None = None
    endpoints_file: Path | None = None
    pool_file_poll_seconds: float = Field(0.5, ge=0.01, le=60)
    namespaces: Names = ()
    """Namespaces to watch, comma separated; none means all."""
    kubeconfig: Path | None = None
    """Used where there is no service account."""
    watch_page: int = Field(500, ge=1, le=10_000)
    """Objects asked for in one page of a list."""
    watch_inactivity_seconds: float = Field(25, ge=1, le=300)
    watch_backoff_seconds: float = Field(8, ge=1, le=300)
    """The longest pause before a failed list or watch is tried again."""

    # Who may talk to it.
    fleet_key_file: Path
    auth: Literal["file", "kubernetes"] = "file"
    reports_token_file: Path | None = None
    admin_token_file: Path | None = None
    review_timeout_seconds: float = Field(10, ge=0.1, le=60)

    # Deciding.
    policy: Literal["cacheAware", "leastLoaded", "roundRobin"] = "cacheAware"
    engine: Choice = "auto"
    """What computes block keys and holds the index; auto takes native code where it is installed."""

    # The gateway.
    request_max_bytes: int = Field(32 * 1024 * 1024, ge=1024, le=1024 * 1024 * 1024)
    request_head_seconds: float = Field(10, ge=0.1, le=300)
    request_body_seconds: float = Field(30, ge=0.1, le=600)
    """How long a request's whole body may take to arrive."""
    reply_send_seconds: float = Field(120, ge=0.1, le=3600)
    """How long a client may take nothing of its answer before it counts as gone."""
    upstream_connect_seconds: float = Field(2, ge=0.1, le=60)
    upstream_idle_seconds: float = Field(600, ge=1, le=86400)
    """How long a worker may be silent within one answer."""
    upstream_connections: int = Field(1024, ge=1, le=65536)
    """Open connections to workers, over all of them."""
    render_timeout_seconds: float = Field(5, ge=0.05, le=120)
    max_legs: int = Field(3, ge=1, le=16)
    """Workers tried for one request before its first byte."""
    drain_seconds: float = Field(25, ge=0, le=3600)
    """How long answers under way may go on after SIGTERM."""

    # Reports.
    report_connections: int = Field(4096, ge=1, le=65536)
    report_hello_seconds: float = Field(10, ge=0.1, le=300)
    """How long a new connection may take to say who it is."""

    # The admin API.
    admin_max_bytes: int = Field(1024 * 1024, ge=1024, le=64 * 1024 * 1024)

    # The store.
    data_dir: Path = Path(".cachefleet/controlplane")
    database_url: SecretStr = SecretStr("")
    """SQLAlchemy URL; empty means SQLite in the data folder."""
    decisions_max_rows: int = Field(20_000, ge=100, le=10_000_000)
    decisions_queue: int = Field(4096, ge=16, le=1_000_000)
    """Decisions waiting to be written; what comes beyond is dropped and counted."""
    decisions_batch: int = Field(256, ge=1, le=4096)
    decisions_flush_seconds: float = Field(0.25, ge=0, le=60)
    database_timeout_seconds: float = Field(2, ge=0.01, le=60)
    database_retry_seconds: float = Field(5, ge=0.01, le=300)

    # Logs.
    log_format: Literal["json", "text"] = "text"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if problems := self._missing() + self._unusable():
            raise ValueError("\n".join(problems))
        return self

    def _unusable(self) -> list[str]:
        try:
            usable_url(self.url)
        except ValueError as error:
            return [f"{_variable('database_url')}: {error}"]
        return []

    def _missing(self) -> list[str]:
        needed = {
            "pool_source": ("pool_file", "endpoints_file"),
            "auth": ("reports_token_file", "admin_token_file"),
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


def load() -> Settings:
    """The settings of this process's environment, or SettingsError."""
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
        return [f"{_variable(field)}: is required: {_allowed(info)}"]
    return [f"{_variable(field)}: got {error['input']!r}, allowed: {_allowed(info)}"]


def _allowed(info: FieldInfo) -> str:
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
