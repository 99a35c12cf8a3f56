"""The configuration of an Envoy that asks an endpoint picker where requests go. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

TYPES: Final = "type.googleapis.com/envoy.extensions."
ENDPOINT: Final = "x-gateway-destination-endpoint"
PATIENCE: Final = "600s"
"""How long a request may wait at the picker: it queues where no worker has room."""
BODY_BYTES: Final = 64 * 1024 * 1024
MAX_STREAMS: Final = 16 * 1024

Address = tuple[str, int]


class BodyMode(StrEnum):
    """How Envoy sends bodies to the picker: as they come, or each at once."""

    FULL_DUPLEX_STREAMED = "FULL_DUPLEX_STREAMED"
    BUFFERED = "BUFFERED"


def envoy_config(
    listen: Address,
    picker: Address,
    workers: Sequence[Address],
    *,
    admin: Address | None = None,
    mode: BodyMode = BodyMode.FULL_DUPLEX_STREAMED,
    fail_open: bool = False,
) -> dict[str, Any]:
    """Return Envoy's bootstrap configuration; ``fail_open``: without the picker requests go to any worker."""
    resources = {
        "listeners": [_listener(listen, mode, fail_open=fail_open)],
        "clusters": [_workers(workers), _picker(picker)],
    }
    return {"static_resources": resources} | ({} if admin is None else {"admin": {"address": _address(admin)}})


def _listener(listen: Address, mode: BodyMode, *, fail_open: bool) -> dict[str, Any]:
    retries = {"retry_on": "connect-failure,refused-stream", "num_retries": 2}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "workers", "timeout": "0s", "retry_policy": retries}}
    router = {"name": "router", "typed_config": {"@type": TYPES + "filters.http.router.v3.Router"}}
    manager = {
        "@type": TYPES + "filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "clients",
        "stream_idle_timeout": PATIENCE,
        "route_config": {"virtual_hosts": [{"name": "models", "domains": ["*"], "routes": [route]}]},
        "http_filters": [_filter(mode, fail_open=fail_open), router],
    }
    return {
        "name": "clients",
        "address": _address(listen),
        "per_connection_buffer_limit_bytes": BODY_BYTES,
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }


def _filter(mode: BodyMode, *, fail_open: bool) -> dict[str, Any]:
    duplex = mode is BodyMode.FULL_DUPLEX_STREAMED
    return {
        "name": "picker",
        "typed_config": {
            "@type": TYPES + "filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "0s"},
            "message_timeout": PATIENCE,
            "failure_mode_allow": fail_open,
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": mode.value,
                "response_body_mode": mode.value if duplex else "STREAMED",
                "request_trailer_mode": "SEND" if duplex else "SKIP",
                "response_trailer_mode": "SEND" if duplex else "SKIP",
            },
            "metadata_options": {
                "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
            },
        },
    }


def _workers(workers: Sequence[Address]) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": _address(worker)}} for worker in workers]
    others = {"name": "others", "typed_config": {"@type": TYPES + "load_balancing_policies.round_robin.v3.RoundRobin"}}
    policy = {
        "@type": TYPES + "load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": ENDPOINT}]}}, {"header": ENDPOINT}],
        "selected_host_key": {"key": "envoy.lb", "path": [{"key": f"{ENDPOINT}-served"}]},
        "fallback_policy": {"policies": [{"typed_extension_config": others}]},
    }
    return {
        "name": "workers",
        "type": "STATIC",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": BODY_BYTES,
        "load_assignment": {"cluster_name": "workers", "endpoints": [{"lb_endpoints": endpoints}]},
        "load_balancing_policy": {"policies": [{"typed_extension_config": {"name": "chosen", "typed_config": policy}}]},
        "circuit_breakers": {"thresholds": [_many()]},
    }


def _picker(picker: Address) -> dict[str, Any]:
    http2 = {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {"max_concurrent_streams": MAX_STREAMS}},
    }
    endpoint = {"endpoint": {"address": _address(picker)}}
    return {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
        "load_assignment": {"cluster_name": "picker", "endpoints": [{"lb_endpoints": [endpoint]}]},
        "circuit_breakers": {"thresholds": [_many()]},
    }


def _many() -> dict[str, int]:
    """As many requests as come: the picker bounds them."""
    return dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), MAX_STREAMS)


def _address(address: Address) -> dict[str, Any]:
    return {"socket_address": {"address": address[0], "port_value": address[1]}}
