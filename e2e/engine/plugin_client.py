"""The plugin's routes of a running engine, and vLLM's own, called from outside."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cachefleet_core.block_keys import BlockKey, unpack_keys
from cachefleet_core.continuation import unpacked
from cachefleet_core.prompt_keys import decode
from e2e.engine.vllm import VllmOptions, VllmServer

CONTRACT: Final = "sha256:" + "c" * 64
CALL_SECONDS: Final = 300.0
WIDE: Final = VllmOptions(
    plugin=True,
    user_key="sk-user",
    cli="serve",
    environment=(("CACHEFLEET_MAX_BODY_BYTES", "100000"),),
    extra=("--api-server-count=2", "--data-parallel-size=2"),
)
"""Two API servers before two ranks."""


class KeyedPrompt(NamedTuple):
    """A prompt with its keys and ids as numbers."""

    tokens: int
    block_size: int
    boundaries: tuple[int, ...]
    keys: list[BlockKey]
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of any status."""

    status: int
    content: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.content)


def call(
    server: VllmServer, method: str, path: str, body: object = None, *, headers: dict[str, str] | None = None
) -> Answer:
    """``body`` is bytes as they are, or JSON; ``headers`` are the worker's credentials unless given."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    given = server.headers if headers is None else headers
    request = urllib.request.Request(  # noqa: S310 - our own http address
        server.url + path, data=data, method=method, headers={"Content-Type": "application/json", **given}
    )
    try:
        with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:  # noqa: S310 - as above
            return Answer(answer.status, answer.read(), dict(answer.headers))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(), dict(error.headers))


def fleet(server: VllmServer, path: str) -> Any:
    """What ``GET /v1/fleet/...`` says."""
    answer = call(server, "GET", f"/v1/fleet{path}")
    assert answer.status == 200, answer.content
    return answer.json


def features(server: VllmServer) -> dict[str, tuple[str, str]]:
    """Mode and reason by feature."""
    return {each["feature"]: (each["mode"], each["reason"]) for each in fleet(server, "/capabilities")["features"]}


def ask_keys(server: VllmServer, body: object, query: str = "", *, headers: dict[str, str] | None = None) -> Answer:
    """``POST /v1/fleet/keys`` under the contract of the tests."""
    return call(server, "POST", f"/v1/fleet/keys?contract={CONTRACT}{query}", body, headers=headers)


def keys_of(server: VllmServer, body: object, query: str = "") -> KeyedPrompt:
    """The only prompt of a body, with its ids."""
    answer = ask_keys(server, body, f"&ids=1{query}")
    assert answer.status == 200, answer.content
    (prompt,) = keyed_prompts(answer.content)
    return prompt


def keyed_prompts(document: bytes) -> list[KeyedPrompt]:
    """The prompts of a document of ``/v1/fleet/keys``."""
    return [
        KeyedPrompt(
            *(each.tokens, each.block_size, each.boundaries), unpack_keys(each.keys), unpacked(each.ids).tolist()
        )
        for each in decode(document)
    ]
