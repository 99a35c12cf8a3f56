"""Requests made from an OpenAPI document, sound and unsound, and what the answers are held to."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import requests
import schemathesis
from aiohttp import web
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from cachefleet_controlplane.wiring.control_plane import ControlPlane
from cachefleet_controlplane.wiring.replica_process import servers
from tests.controlplane.gateway.harness import MODEL, WORKER_KEY
from tests.controlplane.wiring.test_control_plane import BOUNDS
from tests.controlplane.wiring.test_control_plane import settings as plane_settings
from tests.fakes.engine import FakeEngine, Handler
from tests.fakes.failures import bad_request
from tests.fakes.routes import refuse

CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
SERVING: Final[dict[str, Any]] = {"pooling": True, "speech": True}
_MODES: Final = (*[schemathesis.GenerationMode.POSITIVE] * 2, schemathesis.GenerationMode.NEGATIVE)
_SECONDS: Final = 60
_BROKEN_SHARE: Final = 6
"""One in so many requests with a body has bytes that are no JSON of any schema."""


class _Members(msgspec.Struct):
    """Some members that vLLM's models type."""

    n: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(le=2**31)] | None = None
    stream: bool | None = None
    prompt: str | list[Any] | None = None
    input: str | list[Any] | None = None


class Validating(FakeEngine):
    """Refuses what it cannot make sense of, as vLLM's own validation does, where the fake would fail."""

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        async def guarded(inner: web.Request) -> web.StreamResponse:
            try:
                if inner.content_type == "application/json":
                    _validate(await inner.read())
                answer: web.StreamResponse = await handler(inner)
            except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError, RecursionError):
                return refuse(bad_request("the body is not valid"))
            return answer

        return await super()._middleware(request, guarded)


def _validate(body: bytes) -> None:
    """ValueError for members that vLLM refuses and the fake does not look at."""
    if body:
        given = msgspec.json.decode(body, type=_Members)
        if any(_unsound(value) for value in (given.prompt, given.input) if value is not None):
            raise ValueError("not token ids")


def _unsound(value: object) -> bool:
    """An empty prompt, or ids that are none."""
    if isinstance(value, list):
        return not value or any(map(_unsound, value))
    return isinstance(value, bool | float | None) or (isinstance(value, int) and value < 0)


@dataclass(frozen=True, slots=True)
class Served:
    """A whole control plane that listens."""

    gateway: str
    internal: str


@contextmanager
def served(folder: Path, **changes: Any) -> Iterator[Served]:
    """A control plane over SQLite in front of one engine, in a loop of its own; ``changes`` are of its settings."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack = AsyncExitStack()
    try:
        yield asyncio.run_coroutine_threadsafe(_serve(folder, stack, changes), loop).result(_SECONDS)
    finally:
        try:
            asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(_SECONDS)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_SECONDS)
            loop.close()


async def _serve(folder: Path, stack: AsyncExitStack, changes: dict[str, Any]) -> Served:
    engine = Validating(model=MODEL, api_key=WORKER_KEY, block_size=16, natural_tokens=6, plugin=True, **SERVING)
    worker = await stack.enter_async_context(engine)
    told = plane_settings(folder, worker, {"gateway": 0, "internal": 0}, **changes)
    plane = await stack.enter_async_context(ControlPlane(told, BOUNDS))
    addresses = []
    for server in servers(plane, told):
        serving = asyncio.create_task(server.serve())
        stack.push_async_callback(lambda task: task, serving)
        stack.callback(server.stop)
        addresses.append(f"http://127.0.0.1:{await server.listening()}")
    await asyncio.wait_for(plane.fleet.informed.wait(), _SECONDS)
    return Served(*addresses)


@dataclass
class Run:
    """What was sent and what was wrong with the answers, each kind of fault once."""

    cases: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    faults: dict[tuple[str, int, str], str] = field(default_factory=dict)

    def judge(self, case: Any, response: requests.Response) -> None:
        self.cases += 1
        self.statuses[response.status_code] += 1
        # A documented 503 is a state, no fault; whether it is documented is checked like any status.
        excluded = [not_a_server_error] if response.status_code == 503 else []
        try:
            told = Response.from_requests(response, verify=False)
            case.validate_response(told, checks=CHECKS, excluded_checks=excluded)
        except FailureGroup as group:
            for fault in group.exceptions:
                kind = (case.operation.label, response.status_code, type(fault).__name__)
                self.faults.setdefault(kind, f"{fault}\nsent: {response.request.url} {response.request.body!r:.500}")


def run_cases(
    document: Mapping[str, Any],
    base_url: str,
    *,
    count: int,
    hints: Mapping[str, list[str]],
    token: str = "",
    chosen_by: int | None = None,
) -> Run:
    """Send ``count`` cases, the same in every run, unless another number has chosen them. ``hints`` are values that
    exist, by name of parameter or member.
    """
    schema = schemathesis.openapi.from_dict(_hinted(document, hints))
    operations = [_sound(found) for found in schema.get_all_operations()]
    strategies = [operation.as_strategy(generation_mode=mode) for operation in operations for mode in _MODES]
    run, session = Run(), requests.Session()
    session.headers.update({"authorization": f"Bearer {token}"} if token else {})

    @settings(
        max_examples=count,
        derandomize=chosen_by is None,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(case=st.one_of(strategies), broken=_broken())
    def send(case: Any, broken: bytes | None) -> None:
        if run.cases >= count:
            return
        request = case.as_transport_kwargs(base_url=base_url)
        if broken is not None and {"json", "data", "files"} & request.keys():
            for name in ("json", "files"):
                request.pop(name, None)
            request["data"] = broken
        run.judge(case, session.request(**request, timeout=_SECONDS))

    with session:
        (send if chosen_by is None else seed(chosen_by)(send))()
    return run


def _sound(found: Any) -> Any:
    assert isinstance(found, Ok), found
    return found.ok()


def _broken() -> st.SearchStrategy[bytes | None]:
    """Bodies that are no JSON, or JSON that is hard to read; None for the case's own."""
    deep = st.sampled_from([b"[" * 5000, b'{"model":' * 2000, b'{"messages":' + b"[" * 3000 + b"]" * 3000 + b"}"])
    odd = st.sampled_from(
        [
            b"",
            b"null",
            b"[]",
            b'"text"',
            b'{"model":"\xff\xfe"}',
            b'{"prompt":"\\ud800","model":"fake"}',
            b'{"max_tokens":1e999,"prompt":"x"}',
            b'{"max_tokens":' + b"9" * 400 + b',"prompt":"x"}',
            b'{"prompt":"a","prompt":[1],"model":null}',
            b'{"prompt":[18446744073709551616]}',
            b'\xef\xbb\xbf{"prompt":"x"}',
            b'{"prompt":"x"} {"prompt":"y"}',
        ]
    )
    some = st.one_of(st.binary(max_size=64), odd, deep)
    return st.integers(0, _BROKEN_SHARE - 1).flatmap(lambda number: some if number == 0 else st.none())


def _hinted(document: Any, hints: Mapping[str, list[str]]) -> Any:
    """The document with values that exist beside those that are allowed, so that more is reached than refusals."""
    if isinstance(document, list):
        return [_hinted(one, hints) for one in document]
    if not isinstance(document, dict):
        return document
    made = {name: _hinted(value, hints) for name, value in document.items()}
    named = document.get("name")
    if "schema" in made and isinstance(named, str) and named in hints:
        made["schema"] = _or(hints[named], made["schema"])
    properties = made.get("properties")
    if isinstance(properties, dict):
        hinted = {name: _or(hints[name], schema) for name, schema in properties.items() if name in hints}
        made["properties"] = properties | hinted
    return made


def _or(values: list[str], schema: Any) -> dict[str, Any]:
    return {"anyOf": [{"enum": values}, schema]}
