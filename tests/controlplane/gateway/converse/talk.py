"""A gateway that keeps conversations in a real SQLite file, before engines whose plugin gives keys and boundaries."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.converse import turns
from cachefleet_controlplane.gateway.converse.certification.canary import Canaries
from cachefleet_controlplane.gateway.converse.certification.certificates import Certificates
from cachefleet_controlplane.gateway.converse.certification.examiner import Examiner
from cachefleet_controlplane.gateway.converse.certification.plain_render import PlainRenderer
from cachefleet_controlplane.gateway.converse.checkpoint import Owner
from cachefleet_controlplane.gateway.converse.checkpoint_repository import SqlContinuations, pruning
from cachefleet_controlplane.gateway.converse.conversation_metrics import ContinuationMetrics
from cachefleet_controlplane.gateway.converse.encryption import HistoryCipher
from cachefleet_controlplane.gateway.converse.response_histories import Histories
from cachefleet_controlplane.gateway.converse.sessions import Head, name_digest
from cachefleet_controlplane.gateway.converse.turns import TurnContext, Turns
from cachefleet_controlplane.gateway.handles.handles import Handles
from cachefleet_controlplane.gateway.handles.unseen_text import UnseenText
from cachefleet_controlplane.gateway.know.renderer import Renderer
from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.content.store_thread import StoreThread, StoreThreadBounds
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.wiring.conversation_parts import rendered
from cachefleet_core.index_contract import RenderProfile
from cachefleet_core.report_frames import Capability
from cachefleet_core.tenancy import DEFAULT_TENANT, TenantId
from tests.controlplane.gateway.harness import FLEET_KEY, INDEX_KEY, MODEL, WORKER_KEY, Front, chat, engine
from tests.fakes.engine import FakeEngine

SESSION = "x-cachefleet-session"
SYSTEM = {"role": "system", "content": "be brief " * 20}
KEYED: dict[str, Any] = {"capabilities": (Capability(feature="keys", mode="render"),)}
PROFILE = RenderProfile(renderer="vllm", renderer_version="0.32.0", template="sha256:aa")
STORED = "{storeHistory: true}"
OWNER = Owner(DEFAULT_TENANT, f"default/{MODEL}")


def keyed(**options: Any) -> FakeEngine:
    return engine(**({"plugin": True, "index_key": INDEX_KEY} | options))


class _Keys(Credentials):
    def of(self, url: str) -> str:  # whatever the pool
        return WORKER_KEY


@dataclass
class Kept:
    """The store behind a gateway's conversations; ``later`` seconds are added to the wall clock."""

    folder: Path
    later: float = 0.0
    max_bytes: int = 1 << 20
    canary_ratio: float = 0.0
    make_plain: Callable[..., PlainRenderer] = PlainRenderer
    bounds: StoreThreadBounds = field(default_factory=lambda: StoreThreadBounds(answer_seconds=30, retry_seconds=0))

    def __post_init__(self) -> None:
        self.database = Database(f"sqlite:///{self.folder / 'kept.db'}", timeout_seconds=0.2)
        self.store = SqlContinuations(self.database)

    def __call__(self, fleet: Fleet, metrics: Metrics, renderer: Renderer) -> Turns:
        counted = ContinuationMetrics(metrics)
        self.store_thread = StoreThread(
            *(self.store, "conversations"),
            failed=counted.store_failed,
            prune=pruning(20_000, 100_000, self.now),
            bounds=self.bounds,
        )
        sealer = HistoryCipher(FLEET_KEY.history_key)
        histories = Histories(self.store_thread, sealer, max_bytes=self.max_bytes, wall_clock=self.now)
        credentials = _Keys(FLEET_KEY)
        upstream = self.upstream = renderer._upstream  # the gateway's own
        self.plain = self.make_plain(upstream, credentials, seconds=30)
        self.unseen = UnseenText(partial(rendered, fleet, self.plain), fleet.render_facts)
        key = FLEET_KEY.history_key
        parts = TurnContext(fleet, self.store_thread, histories, counted, key, self.unseen, wall_clock=self.now)
        self.certificates = Certificates(self.store_thread)
        self.canaries = Canaries(fleet, self.plain, self.certificates, metrics=counted, ratio=self.canary_ratio)
        self.examiner = Examiner(fleet, self.plain, self.certificates, metrics=counted, chats=3)
        return Turns(parts, on_plan=self.canaries)

    def handles(self, fleet: Fleet, metrics: Metrics) -> Handles:
        """Handles for certified profiles, with the canaries above; for ``front(handles=...)``."""
        return Handles(
            *(fleet, self.upstream, _Keys(FLEET_KEY)),
            key=FLEET_KEY.history_key,
            metrics=metrics,
            certified=self.certificates.hold,
            on_continued=self.canaries.rendered_by_handle,
            unseen=self.unseen,
        )

    def now(self) -> float:
        return time.time() + self.later

    def head(self, session: str, tenant: TenantId = DEFAULT_TENANT) -> Head | None:
        owner = Owner(tenant, OWNER.model)
        return self.store.head(owner, name_digest(FLEET_KEY.history_key, turns.SESSION, session.encode()))


def introduce(gate: Front, *numbers: int, **said: Any) -> None:
    """Agents that say their engines' plugins give keys."""
    for number in numbers or range(len(gate.engines)):
        gate.report(number, said=KEYED | {"profile": PROFILE} | said)


def outcomes(gate: Front) -> list[str | None]:
    return [record.continuation for record in gate.records]


class Chat:
    """A conversation as its client has it: all messages, sent each turn."""

    def __init__(self, gate: Front, session: str = "s1", **fields: Any) -> None:
        self.gate = gate
        self.headers = {SESSION: session}
        self.messages: list[dict[str, str]] = [SYSTEM]
        self.fields = fields

    async def say(self, text: str, **fields: Any) -> str | None:
        """One turn; the outcome."""
        self.messages.append({"role": "user", "content": text})
        asked = chat("", messages=self.messages) | self.fields | fields
        status, _, body = await self.gate.post("/v1/chat/completions", asked, **self.headers)
        assert status == 200, body
        if not asked.get("stream"):
            self.messages.append({"role": "assistant", "content": json.loads(body)["choices"][0]["message"]["content"]})
        introduce(self.gate)
        return self.gate.records[-1].continuation


def engines(gate: Front) -> list[FakeEngine]:
    return [each for each in gate.engines if isinstance(each, FakeEngine)]
