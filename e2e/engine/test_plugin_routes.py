"""The plugin's routes on real servers: two API servers over two ranks; one in which the plugin is broken."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from cachefleet_core.tenancy import salt_digest
from e2e.engine.fleet import until
from e2e.engine.plugin_client import WIDE, ask_keys, call, features, fleet
from e2e.engine.vllm import START_SECONDS, VllmOptions, VllmServer

PLUGIN: Final = "cachefleet_worker.plugin"
BROKEN: Final = VllmOptions(
    plugin=True,
    faults=(
        f"{PLUGIN}.gate.gated_admission:Admission._is_exempt",
        f"{PLUGIN}.snapshot.resident_ledger:ResidentLedger.apply",
        f"{PLUGIN}.budget.block_eviction:BlockOrder.freed",
        f"{PLUGIN}.tokens.segments:PartEncoder.encode",
        f"{PLUGIN}.keys.key_cache:KeyCache.keys",
        f"{PLUGIN}.engine_state:EngineState._audit",
    ),
)
USER: Final = {"Authorization": "Bearer sk-user"}
ASKED_BY_VLLM: Final = ("/v1", "/v2", "/inference", "/cohere")
"""Where vLLM itself asks for its API key, which may be a user's."""
WORKER: Final = {**USER, "X-Cachefleet-Token": "sk-test"}
TURN: Final = [{"role": "user", "content": "What is the weather like at sea tomorrow? " * 8}]
CHAT: Final = {"model": "tiny", "messages": TURN, "max_tokens": 3, "temperature": 0, "ignore_eos": True}

on_wide = pytest.mark.parametrize("vllm_server", [WIDE], indirect=True)
on_broken = pytest.mark.parametrize("vllm_server", [BROKEN], indirect=True)


@on_wide
def test_only_the_worker_key_opens_the_routes(vllm_server: VllmServer) -> None:
    assert call(vllm_server, "GET", "/v1/models", headers=USER).status == 200, "the user's key opens vLLM"
    for method, path in (
        ("GET", "/capabilities"),
        ("GET", "/stats"),
        ("GET", "/audit"),
        ("GET", "/snapshot"),
        ("PUT", "/policy"),
        ("POST", "/keys"),
        ("POST", "/flush"),
        ("GET", "/no-such-thing"),
    ):
        assert call(vllm_server, method, f"/v1/fleet{path}", headers=USER).status == 403, path
        assert call(vllm_server, method, f"/v1/fleet{path}", headers={}).status == 401, "vLLM's own check comes first"
    assert call(vllm_server, "GET", "/v1/fleet/stats", headers=WORKER).status == 200
    assert call(vllm_server, "GET", "/v1/fleet/stats").status == 200
    assert call(vllm_server, "GET", "/v1/fleet/no-such-thing").status == 404
    wrong = call(vllm_server, "POST", "/v1/fleet/policy", {})
    assert (wrong.status, wrong.headers["allow"]) == (405, "PUT")


@on_wide
def test_only_the_worker_key_opens_any_other_path(vllm_server: VllmServer) -> None:
    """Each route that this vLLM has, whether known to us or not, in its developer mode too."""
    for path in ("/health", "/metrics"):
        assert call(vllm_server, "GET", path, headers={}).status == 200, path
    for method, path in (*served(vllm_server), ("POST", "/never-heard-of"), ("GET", "/metrics/x"), ("GET", "/HEALTH")):
        assert call(vllm_server, method, path, {}, headers={}).status == 401, (method, path)
        if not path.startswith(ASKED_BY_VLLM):
            assert call(vllm_server, method, path, {}, headers=USER).status == 401, (method, path)
    prompt = {"model": "tiny", "prompt": "What is the weather?"}
    for path in ("/tokenize", "/invocations"):
        assert call(vllm_server, "POST", path, prompt | {"max_tokens": 1}).status == 200, path
    assert call(vllm_server, "OPTIONS", "/pause", headers={}).status == 401
    assert [upgrade(vllm_server, path) for path in ("/v1/realtime", "/health", "/x")] == [401, 403, 403]
    assert features(vllm_server)["guard"] == ("on", "")


def served(server: VllmServer) -> list[tuple[str, str]]:
    """Every method and path of the server's own description, and some that it may not describe."""
    described = call(server, "GET", "/openapi.json").json["paths"]
    listed = {(method.upper(), path) for path, methods in described.items() for method in methods}
    assert len(listed) > 20, sorted(listed)
    named = {("POST", "/invocations"), ("POST", "/tokenize"), ("POST", "/collective_rpc"), ("GET", "/server_info")}
    assert named <= listed, sorted(listed)
    more = {("GET", "/docs"), ("GET", "/openapi.json"), ("POST", "/pause"), ("GET", "/load")}
    return sorted((listed | more) - {("GET", "/health"), ("GET", "/metrics")})


def upgrade(server: VllmServer, path: str) -> int:
    """The status that a WebSocket without a key is answered with."""
    address = urlsplit(server.url)
    lines = [f"GET {path} HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: websocket"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==", "", ""]
    with socket.create_connection((address.hostname, address.port), timeout=60) as asking:
        asking.sendall("\r\n".join(lines).encode())
        return int(asking.recv(4096).split()[1])


@on_wide
def test_every_api_server_speaks_for_every_rank(vllm_server: VllmServer) -> None:
    answers = [fleet(vllm_server, "/capabilities") for _ in range(12)]
    for answer in answers:  # each API server has a tokenizer of its own, proven when its first text comes
        answer["features"] = [each for each in answer["features"] if each["feature"] != "tokens"]
    assert all(answer == answers[0] for answer in answers), "connections go to both API servers"
    told = answers[0]
    assert sorted(told["ranks"]) == ["0", "1"]
    assert [told["ranks"][rank]["rank"] for rank in "01"] == [0, 1]
    assert told["ranks"]["0"]["boot"] != told["ranks"]["1"]["boot"]
    assert (told["vocab_size"], told["max_model_len"], told["block_size"]) == (2048, 1024, 32)
    assert (told["prefix_caching"], told["data_parallel_size"]) == (True, 2)
    assert (told["engine"], told["note"]) == (call(vllm_server, "GET", "/version").json["version"], "")


@on_wide
def test_a_policy_is_in_force_on_both_ranks_whoever_was_told(vllm_server: VllmServer) -> None:
    for generation in range(1, 5):
        policy = {"pool": "a/b", "uid": "wide", "generation": generation, "budget_mib": 1}
        answer = call(vllm_server, "PUT", "/v1/fleet/policy", policy)
        assert (answer.status, answer.json["generation"]) == (200, generation)
        assert {rank["generation"] for rank in fleet(vllm_server, "/stats")["ranks"].values()} == {generation}
    old = call(vllm_server, "PUT", "/v1/fleet/policy", {"pool": "a/b", "uid": "wide", "generation": 2})
    assert (old.status, old.json["generation"]) == (200, 4)
    none = {"pool": "a/b", "uid": "later", "generation": 0, "budget_mib": None}
    assert call(vllm_server, "PUT", "/v1/fleet/policy", none).json["generation"] == 0
    assert call(vllm_server, "PUT", "/v1/fleet/policy", none | {"threshold": 1.1}).status == 400


@on_wide
def test_a_flush_is_of_every_rank_or_of_one(vllm_server: VllmServer) -> None:
    def cached(rank: int) -> int:
        body = {"model": "tiny", "prompt": list(range(400, 600)), "max_tokens": 1, "cache_salt": "flushed"}
        answer = call(vllm_server, "POST", "/v1/completions", body, headers=USER | {"X-data-parallel-rank": str(rank)})
        return int(answer.json["usage"]["prompt_tokens_details"]["cached_tokens"])

    def flushed(**ask: object) -> dict[str, int]:
        answer = call(vllm_server, "POST", "/v1/fleet/flush", {"salts": [salt_digest("flushed")], **ask})
        assert answer.status == 200, answer.content
        return {rank: told["blocks"] for rank, told in answer.json["ranks"].items()}

    assert [cached(rank) for rank in (0, 1)] == [0, 0]
    assert flushed(dry_run=True) == {"0": 6, "1": 6}
    assert flushed(rank=1) == {"1": 6}
    assert [cached(rank) for rank in (0, 1)] == [192, 0]
    assert flushed() == {"0": 6, "1": 6}
    assert [cached(rank) for rank in (0, 1)] == [0, 0]


@on_wide
def test_each_rank_gives_its_own_snapshot(vllm_server: VllmServer) -> None:
    ranks = fleet(vllm_server, "/capabilities")["ranks"]
    for rank in "01":
        answer = call(vllm_server, "GET", f"/v1/fleet/snapshot?rank={rank}")
        assert answer.status == 200
        assert ranks[rank]["boot"].encode() in answer.content
        assert answer.content.endswith(struct.pack("<I", 0))
    assert call(vllm_server, "GET", "/v1/fleet/snapshot?rank=2").status == 503
    assert call(vllm_server, "GET", "/v1/fleet/snapshot?rank=x").status == 400


@on_wide
def test_bodies_are_bounded_in_size_and_time(vllm_server: VllmServer) -> None:
    assert ask_keys(vllm_server, b"[" * 100_001).status == 413
    assert ask_keys(vllm_server, b"[" * 100_000).status == 400
    assert call(vllm_server, "PUT", "/v1/fleet/policy", b" " * 70_000).status == 413
    address = urlsplit(vllm_server.url)
    head = "POST /v1/fleet/keys HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-test\r\nContent-Length: 100\r\n\r\n{"
    with socket.create_connection((address.hostname, address.port), timeout=60) as slow:
        slow.sendall(head.encode())
        assert b" 408 " in slow.recv(4096).split(b"\r\n")[0]


@on_wide
def test_it_is_told_at_the_start_what_is_on(vllm_server: VllmServer) -> None:
    def lines() -> list[str]:
        return [line for line in vllm_server.log.read_text().splitlines() if "cachefleet 0." in line]

    def api() -> list[str]:
        return [line for line in lines() if "on vLLM" in line]

    until(lambda: len(api()) >= 2, START_SECONDS, "both API servers, which start at the same time")
    assert len(api()) == 2, "one line of each API server"
    assert all("gate in_loop" in line and "keys render" in line for line in api())
    assert sorted(line.partition("rank ")[2][0] for line in lines() if "rank " in line) == ["0", "1"]


@on_wide
def test_many_at_once_are_answered_or_put_off(vllm_server: VllmServer) -> None:
    def send(at: int) -> int:
        if at % 3:
            return ask_keys(vllm_server, {"model": "tiny", "messages": TURN}).status
        return call(vllm_server, "GET", "/v1/fleet/audit").status

    def sent(at: int) -> int:
        """The status once it is not put off."""
        while (status := send(at)) == 429:
            time.sleep(0.05)
        return status

    with ThreadPoolExecutor(24) as pool:
        statuses = list(pool.map(sent, range(120)))
    assert set(statuses) == {200}
    assert call(vllm_server, "POST", "/v1/chat/completions", CHAT).status == 200


@on_broken
def test_a_broken_plugin_leaves_vllm_as_it_is(vllm_server: VllmServer) -> None:
    """In one test: each fault turns its feature off for good."""
    expected = answers(vllm_server, vllm_xargs=None)
    for _ in range(3):
        assert answers(vllm_server, vllm_xargs={"cache_hit_threshold": 1.0}) == expected, "never refused"
    for _ in range(4):
        refused = ask_keys(vllm_server, CHAT)
    assert (refused.status, refused.json["error"]["code"]) == (503, "keys_off")
    for _ in range(3):
        assert call(vllm_server, "GET", "/v1/fleet/audit").status == 503
    told = features(vllm_server)
    for feature in ("gate", "budget", "snapshot", "tokens"):
        assert told[feature] == ("off", "fault: ZeroDivisionError"), feature
    assert told["keys"] == ("off", "3 faults in a row")
    assert told["finish_reason"][0] == "enum", "one fault is not another feature's"
    stats = fleet(vllm_server, "/stats")
    assert stats["faults"]["tokens"] == 1, "off after the first"
    assert stats["faults"]["/keys"] == 3
    assert set(stats["ranks"]["0"]["faults"]) == {"gate", "budget", "snapshot"}
    log = vllm_server.log.read_text()
    for feature in ("gate", "budget", "snapshot", "tokens"):
        assert log.count(f"cachefleet: {feature} failed and is off") == 1, feature
    assert log.count("cachefleet: /keys: ZeroDivisionError") == 1
    assert call(vllm_server, "GET", "/v1/fleet/snapshot").status == 503
    assert call(vllm_server, "GET", "/health").status == 200


def answers(server: VllmServer, **more: Any) -> list[str]:
    """Texts of the same requests: chat and completion, the second time out of the cache."""
    given = {name: value for name, value in more.items() if value is not None}
    texts: list[Callable[[], str]] = [
        lambda: _text(server, "/v1/chat/completions", CHAT | given),
        lambda: _text(server, "/v1/completions", CHAT | {"prompt": "The sea is calm today. " * 20} | given),
    ]
    return [text() for text in texts * 2]


def _text(server: VllmServer, path: str, body: dict[str, Any]) -> str:
    sent = {name: value for name, value in body.items() if name != "messages" or "prompt" not in body}
    answer = call(server, "POST", path, sent)
    assert answer.status == 200, answer.content
    (choice,) = answer.json["choices"]
    assert choice["finish_reason"] == "length"
    return json.dumps(choice.get("message", {}).get("content") or choice.get("text"))
