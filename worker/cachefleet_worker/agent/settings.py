"""Settings of an agent, from environment variables, and its fixed bounds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, SkipValidation, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from cachefleet_core.engine.engine_configuration import EngineConfiguration
from cachefleet_core.tenancy import parse_index_key
from cachefleet_core.tls_names import AUTHORITIES

Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


def _http_url(value: str) -> str:
    if value and urlsplit(value).scheme not in ("http", "https"):
        raise ValueError("must be an http:// or https:// URL")
    return value.rstrip("/")


def _bracketed(url: object) -> object:
    """A URL that was put together from an IPv6 address, as a container's description does it, with brackets around."""
    return (
        re.sub(r"^(https?://)([0-9a-fA-F]*:[0-9a-fA-F:.]*):([0-9]+)$", r"\1[\2]:\3", url)
        if isinstance(url, str)
        else url
    )


HttpUrl = Annotated[str, BeforeValidator(_bracketed), AfterValidator(_http_url)]


class AgentBounds(BaseSettings):
    """Times and sizes of an agent that are the same in every installation: no environment variable changes them.

    Whoever builds an agent in its own process may choose others.
    """

    model_config = SettingsConfigDict(env_prefix="CACHEFLEET_", env_ignore_empty=True, frozen=True, extra="forbid")

    poll_seconds: Seconds = 1.0
    engine_timeout_seconds: Seconds = 3.0
    unreachable_polls: Positive = 3
    """Refused connections in a row after which the engine counts as gone."""
    key_refusals: Positive = 5
    """Refusals of the worker key in a row, by an engine that is awaited, after which the agent ends and says so."""
    failed_seconds: Seconds = 120.0
    """A lost engine that stays away this long makes the worker failed."""
    registration_seconds: Seconds = 30.0
    """How long readiness waits for a control plane, once the engine has started."""
    drain_settle_seconds: Annotated[float, Field(ge=0)] = 2.0
    """How long the engine must have been idle: a gateway that has not heard yet may still send something."""

    delta_seconds: Seconds = 0.02
    """From a change of the held blocks that comes alone to its report."""
    send_queue_frames: Positive = 2048
    send_queue_bytes: Positive = 16 * 1024 * 1024
    send_timeout_seconds: Seconds = 20.0
    resolve_seconds: Seconds = 5.0
    heartbeat_seconds: Seconds = 10.0
    reconnect_base_seconds: Seconds = 0.2
    reconnect_cap_seconds: Seconds = 10.0
    max_control_planes: Positive = 64

    event_queue: Positive = 200_000
    event_max_bytes: Positive = 64 * 1024 * 1024
    replay_timeout_seconds: Seconds = 5.0
    snapshot_seconds: Seconds = 60.0
    """For a whole snapshot of the engine's plugin."""
    snapshot_silence_seconds: Seconds = 10.0
    """Longest wait for a snapshot's next bytes."""
    probe_seconds: Seconds = 5.0
    held_back_batches: Positive = 20_000
    held_back_bytes: Positive = 64 * 1024 * 1024
    remembered_blocks: Positive = 262_144
    namespaces: Positive = 1024
    warm_queue: Positive = 4096
    warm_timeout_seconds: Seconds = 300.0
    """For one prompt; how long traffic waits for all of them is the pool's to say."""
    warm_retry_seconds: Seconds = 1.0
    warm_retry_cap_seconds: Seconds = 60.0
    policy_retry_seconds: Seconds = 0.5
    policy_retry_cap_seconds: Seconds = 10.0
    policy_file_seconds: Seconds = 1.0
    """Between two looks at the policy file."""
    adapter_look_seconds: Seconds = 10.0
    """Between two looks at what the engine serves."""
    adapter_retry_seconds: Seconds = 1.0
    adapter_retry_cap_seconds: Seconds = 60.0

    corrupted_requests: Annotated[int, Field(ge=0)] = 0
    """Requests with logits that are no numbers which are borne with, in one life of the engine."""
    error_polls: Positive = 5
    """Polls with errors of the engine's own, and no request that ended well in between, which are not."""


class _Environment(EnvSettingsSource):
    """The environment, without the variables of ``AgentBounds``."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        if field_name in AgentBounds.model_fields:
            return None, field_name, False
        return super().get_field_value(field, field_name)


class AgentSettings(AgentBounds):
    """What differs between agents. Environment variables have the prefix ``CACHEFLEET_``; secrets are named by file.

    Each docstring ends with when to change the setting: docs/settings.md is made from it.
    """

    worker: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the worker. Set by the operator from the pod's name."""
    pool: Annotated[str, Field(pattern=r"^[^/]+/[^/]+$", max_length=253)]
    """The worker's pool, NAMESPACE/NAME. Set by the operator."""
    ranks: Annotated[int, Field(ge=1, le=4096)] = 1
    """Data-parallel ranks of the engine. Set by the operator."""

    engine_url: HttpUrl = "http://127.0.0.1:8000"
    """Where the agent reaches the engine. Set by the operator."""
    endpoint: HttpUrl = ""
    """The engine's URL as the gateway reaches it; the engine URL where empty. Set by the operator."""
    agent_endpoint: HttpUrl = ""
    """The agent's URL as the gateway reaches it. Set by the operator."""
    worker_key_file: Path | None = None
    """Holds the engine's API key. Set by the operator."""
    events_endpoint: str = "tcp://127.0.0.1:5557"
    """Where rank 0 publishes, for engines that do not say so themselves (before 0.31); rank r is at port + r. Set by
    the operator."""
    replay_endpoint: str = "tcp://127.0.0.1:5657"
    """Where rank 0 replays events. Set by the operator."""
    weights: Annotated[str, Field(max_length=1024)] = ""
    """What the engine was told to load; the model's root as the engine names it where empty. Set by the operator."""
    revision: Annotated[str, Field(max_length=1024)] = ""
    """The revision of the weights. Set by the operator."""
    asked: Annotated[EngineConfiguration, NoDecode, SkipValidation] = EngineConfiguration()
    """What the engine was asked to be, as JSON; where it says otherwise, that is logged and reported. Set by the
    operator."""
    tool_parser: str = ""
    """The engine's `--tool-call-parser`, which a render profile names. Set it for an engine that the
    operator did not start."""
    reasoning_parser: str = ""
    """The engine's `--reasoning-parser`, which a render profile names. Set it for an engine that the
    operator did not start."""
    max_batched_tokens: Annotated[int, Field(ge=0)] = 0
    """The engine's `--max-num-batched-tokens`, which it does not publish; 0 where unknown. Set it for an engine
    that the operator did not start."""
    stuck_seconds: Annotated[float, Field(ge=0)] = 60.0
    """An engine with requests that shows no change for this long is stuck: it gets no others. 0: never. Raise it where
    one step of an engine takes longer."""

    control_planes: Annotated[tuple[str, ...], NoDecode] = ()
    """ws:// or wss:// URLs of replicas, comma separated. Set by a fleet on one machine."""
    control_plane_dns: str = ""
    """host:port of a headless Service; every address behind it is a replica. Set by the operator."""
    control_plane_ca_file: Path | None = None
    """Authorities that replicas of the control plane are verified by; those of the TLS folder where empty. Set it where
    the control plane's certificate is from another authority."""
    tls_folder: Path | None = None
    """Folder of tls.crt, tls.key and ca.crt: the agent serves TLS, and verifies engine and control planes. Set by the
    operator."""
    token_file: Path | None = None
    """The token that the control plane checks. Set by the operator."""
    index_key_file: Path
    """Holds the key that block keys are seeded with. Set by the operator."""
    policy_file: Path | None = None
    """JSON of the pool's policy. Set by the operator."""

    http_host: str = "::"
    """Address of probes and metrics, :: for all of both families. Set by the operator."""
    http_port: Annotated[int, Field(ge=0, le=65535)] = 8082
    """Port of probes and metrics; 0 takes a free one. Set by the operator."""
    log_format: Literal["json", "text"] = "json"
    """Form of log lines. Set it to `text` where people read them."""

    drain_seconds: Annotated[float, Field(ge=0)] = 20.0
    """How long running requests get once this worker is to go. Set by the operator from its `WORKER_DRAIN_SECONDS`."""
    drain_path: Annotated[str, Field(pattern=r"^(/drain(/[A-Za-z0-9_-]{1,128})?)?$")] = ""
    """Where a GET begins the drain and is answered at its end; nowhere where empty. Whoever knows it may use it. Set by
    the operator."""
    after_drain: Literal["exit", "stay"] = "exit"
    """What to do once a drain that a control plane asked for is done. Set by the operator."""
    load_adapters: bool = False
    """Load the adapters that the policy names into the running engine, and unload all others. Set by the operator."""
    adapter_load_seconds: Seconds = 600.0
    """For loading one adapter, with its download. Raise it for slow downloads."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic names them
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments of the constructor, then the environment without what is the same everywhere."""
        return init_settings, _Environment(settings_cls)

    @field_validator("asked", mode="before")
    @classmethod
    def _read_asked(cls, value: object) -> object:
        return msgspec.json.decode(value, type=EngineConfiguration) if isinstance(value, str) else value

    @field_validator("control_planes", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("control_planes")
    @classmethod
    def _are_websockets(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            if urlsplit(url).scheme not in ("ws", "wss") or not urlsplit(url).hostname:
                raise ValueError(f"{url!r} is not a ws:// or wss:// URL")
        return value

    @field_validator("control_plane_dns")
    @classmethod
    def _has_port(cls, value: str) -> str:
        if value:
            host, _, port = value.rpartition(":")
            if not host or not port.isdigit():
                raise ValueError("must be host:port")
        return value

    @property
    def ca_file(self) -> Path | None:
        """The authorities to trust; None for those of the machine."""
        return self.control_plane_ca_file or (self.tls_folder / AUTHORITIES if self.tls_folder else None)

    def index_key(self) -> bytes:
        """The key that block keys are seeded with. OSError or ValueError where the file holds none."""
        try:
            return parse_index_key(self.index_key_file.read_bytes())
        except ValueError as error:
            raise ValueError(f"{self.index_key_file}: {error}") from error

    def worker_key(self) -> str:
        """The engine's API key, "" where it asks for none. OSError where the file cannot be read."""
        return self.worker_key_file.read_text().strip() if self.worker_key_file else ""
