"""The routes of cachefleet's worker plugin, of which the fake has policy, idle budget, flush, keys and handles."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web

from cachefleet_core.block_keys import BlockKeyer, Namespace, pack_tokens
from cachefleet_core.engine.cache_flush import FlushAsk, Flushed
from cachefleet_core.engine.held_requests import LATE_MEMBERS, Hold, LateMembers
from cachefleet_core.engine.left_answers import LEFT_PATH
from cachefleet_core.prompt_keys import MEDIA_TYPE, PromptKeys, encode
from cachefleet_core.report_frames import Policy
from cachefleet_core.tenancy import salt_digest
from cachefleet_worker.plugin.usage.left_answers import NamedRequests
from tests.fakes.asks import Reader
from tests.fakes.chain import Link
from tests.fakes.conversations import KeptConversations
from tests.fakes.named_requests import answered
from tests.fakes.tokenizer import ByteTokenizer, Tokenizer
from tests.fakes.worker import Worker

PREFIX: Final = "/v1/fleet"
START: Final = ByteTokenizer().encode("<|im_start|>")[0]
"""What begins a message; of the byte tokenizer alone."""
_MIB: Final = 1024 * 1024
_MAX_POLICY: Final = 64 * 1024
_NOT_HERE: Final = "the fake engine has no such feature"
_MODES: Final = {
    "routes": "http",
    "guard": "on",
    "budget": "blocks",
    "gate": "in_loop",
    "preemption": "in_loop",
    "conversations": "on",
    "flush": "blocks",
    "left_answers": "on",
    "answer_replay": "on",
}
_KEYED: Final = {"keys": "render", "prompts": "on", "held": LATE_MEMBERS}
_FEATURES: Final = (
    "routes",
    "guard",
    "gate",
    "preemption",
    "budget",
    "snapshot",
    "heartbeat",
    "tokens",
    "keys",
    "prompts",
    "conversations",
    "held",
    "flush",
    "left_answers",
    "answer_replay",
)


class FleetRoutes:
    """The plugin of one life of an engine. ``refuse_policies``: answer so many of the next ones with a 503."""

    def __init__(self, worker: Worker, tokenizer: Tokenizer, reply: Callable[..., web.Response]) -> None:
        self.boot = uuid.uuid4().hex
        self.policy: Policy | None = None
        self.policies: list[Policy] = []
        """Everything put, in order."""
        self.refuse_policies = 0
        self.endings = 0
        """How often all conversations were ended; the fake keeps none."""
        self.named = NamedRequests()
        """Requests with a name, which may be asked for."""
        self.late_members: list[LateMembers] = []
        """Of each held request that was answered."""
        self.holds = True
        """Whether it holds requests; where it is off by now, a request that is to be held is refused."""
        self.lacking: set[str] = {"answer_replay"} if worker.options.unrecorded else set()
        """APIs that its vLLM does not render."""
        self._flushed = 0
        self._worker = worker
        self._vocabulary = tokenizer.vocabulary
        self._reply = reply
        self._read = Reader(worker.options, tokenizer)
        self.conversations = KeptConversations(self._ids)

    def table(self) -> list[web.RouteDef]:
        return [
            web.get(f"{PREFIX}/capabilities", self._guarded(self._capabilities), allow_head=False),
            web.get(f"{PREFIX}/stats", self._guarded(self._stats), allow_head=False),
            web.put(f"{PREFIX}/policy", self._guarded(self._put_policy)),
            web.delete(f"{PREFIX}/conversations", self._guarded(self._end_conversations)),
            web.post(f"{PREFIX}/keys", self._guarded(self._keys)),
            web.post(f"{PREFIX}/flush", self._guarded(self._flush)),
            web.post(f"{PREFIX}/hand_back", self._guarded(self._hand_back)),
            web.post(LEFT_PATH, self._guarded(partial(answered, self.named))),
        ]

    def _guarded(self, handle: Callable[[web.Request], Any]) -> Callable[[web.Request], Any]:
        async def guarded(request: web.Request) -> web.Response:
            key = self._worker.options.worker_key or self._worker.options.api_key
            bearer = request.headers.get("Authorization", "").partition(" ")[2]
            if not key or request.headers.get("X-Cachefleet-Token", bearer) != key:
                return self._error(403, "wrong_token" if key else "no_worker_key")
            answer: web.Response = await handle(request)
            return answer

        return guarded

    async def _keys(self, request: web.Request) -> web.Response:
        """Without adapters; the first prompt alone. Boundaries are one past a message's start, as the plugin has it."""
        options, query = self._worker.options, request.query
        if not options.index_key:
            return self._error(503, "keys_off")
        if not query.get("contract", "").startswith("sha256:"):
            return self._error(400, "bad_contract")
        body = self._read.body(await request.read())
        if query.get("api", "") in self.lacking:
            return self._error(501, "no_api")
        if not body.keys() & {"messages", "prompt", "input"}:
            return self._error(400, "bad_body")
        size, with_ids = int(query.get("block_size", options.block_size)), query.get("ids") == "1"
        ahead = int(query.get("lookahead", 0))
        hold = Hold(length=1, contract=query["contract"], block_size=size, lookahead=ahead, ids=with_ids)
        document = self._document(hold, query.get("api", ""), body)
        return web.Response(body=document, content_type=MEDIA_TYPE)

    def document(self, hold: Hold, request: web.Request, body: bytes) -> bytes:
        """The keys of a held request; b"" for APIs that its vLLM does not render."""
        api = {"/v1/responses": "responses", "/v1/messages": "messages"}.get(request.path, "")
        return b"" if api in self.lacking else self._document(hold, api, self._read.body(body))

    def _document(self, hold: Hold, api: str, body: dict[str, Any]) -> bytes:
        ids, key = self._ids(api, body), self._worker.options.index_key or b""
        space = Namespace(hold.contract, body.get("cache_salt") or "")
        keyer = BlockKeyer(key, space, hold.block_size, hold.lookahead)
        starts = tuple(place + 1 for place, token in enumerate(ids) if token == START and place + 1 < len(ids))
        prompt = PromptKeys(len(ids), hold.block_size, starts, keyer.packed_keys(ids), pack_tokens(ids))
        return encode([prompt], ids=hold.ids)

    def _ids(self, api: str, body: dict[str, Any]) -> list[int]:
        readers = {"responses": self._read.responses, "messages": self._read.messages}
        plain = self._read.chat if "messages" in body else self._read.completion
        return list(readers.get(api, plain)(body).prompts[0])

    async def _hand_back(self, _: web.Request) -> web.Response:
        return self._reply({"ranks": {str(self._worker.options.rank): {"handed_back": self._worker.hand_back_all()}}})

    def _error(self, status: int, code: str, message: str = "") -> web.Response:
        return self._reply({"error": {"code": code, "message": message or code}}, status)

    async def _end_conversations(self, _: web.Request) -> web.Response:
        self.endings += 1
        return self._reply({"turns": self.conversations.store.clear()})

    async def _capabilities(self, _: web.Request) -> web.Response:
        options = self._worker.options
        modes = _MODES | (_KEYED if options.index_key else {})
        modes = {name: mode for name, mode in modes.items() if name not in self.lacking}
        features = [
            {"feature": name, "mode": modes.get(name, "off"), "reason": "" if name in modes else _NOT_HERE}
            for name in _FEATURES
        ]
        rank = {
            "rank": options.rank,
            "boot": self.boot,
            "block_bytes": options.block_bytes,
            "blocks_total": options.num_blocks,
            "block_size": options.block_size,
            "lookahead": options.lookahead,
            "vocab_size": self._vocabulary,
        }
        document = {"plugin": "0.1.0", "engine": options.version, "features": features}
        return self._reply(document | {"ranks": {str(options.rank): rank}})

    async def _stats(self, _: web.Request) -> web.Response:
        return self._reply({"ranks": {str(self._worker.options.rank): self._numbers()}, "tokens": {}})

    async def _flush(self, request: web.Request) -> web.Response:
        """Prompts without adapters and images, one for each request."""
        try:
            ask = msgspec.json.decode(await request.read(), type=FlushAsk)
        except msgspec.DecodeError as error:
            return self._error(400, "bad_flush", str(error))
        if not ask.named:
            return self._error(400, "bad_flush")
        beginning = self._ids("", ask.prompt) if ask.prompt is not None else None
        size = self._worker.options.block_size
        if beginning is not None and len(beginning) < size:
            return self._error(422, "short_prompt", f"fewer tokens than a block of {size}")
        blocks, busy = self._worker.pool.flush(self._meant(ask, beginning), dry_run=ask.dry_run)
        self._flushed += 0 if ask.dry_run else blocks
        if (events := self._worker.pool.take_events()) and self._worker.options.events:
            self._worker.publisher.publish(events)
        told = Flushed(blocks=blocks, tokens=blocks * size, busy=busy)
        return self._reply({"ranks": {str(self._worker.options.rank): msgspec.to_builtins(told)}})

    def _meant(self, ask: FlushAsk, beginning: list[int] | None) -> Callable[[Link], bool]:
        held, size = self._worker.pool.held(), self._worker.options.block_size
        whole = tuple(beginning or ())[: len(beginning or ()) // size * size]
        needed = {link.parent for link in held if link.prefix() != whole[: len(link.prefix())]}
        needed -= {link for link in needed if link and len(link.prefix()) >= len(whole)}
        needed |= {before for link in needed if link for before in link.lineage()}

        def meant(link: Link) -> bool:
            tokens, salt = link.prefix(), link.lineage()[0].salt
            begun = tokens[: len(whole)] == whole or (whole[: len(tokens)] == tokens and link not in needed)
            return begun and ask.adapter is None and (ask.salts is None or (salt and salt_digest(salt)) in ask.salts)

        return meant

    async def _put_policy(self, request: web.Request) -> web.Response:
        body = await request.read()
        if len(body) > _MAX_POLICY:
            return self._error(413, "too_large")
        if self.refuse_policies > 0:
            self.refuse_policies -= 1
            return self._error(503, "engine_unavailable")
        try:
            policy = msgspec.json.decode(body, type=Policy)
        except msgspec.DecodeError:
            return self._error(400, "bad_policy")
        self.policies.append(policy)
        evicted = self._apply(policy)
        numbers = self._numbers() | {"evicted": evicted}
        return self._reply({"generation": numbers["generation"], "ranks": {str(self._worker.options.rank): numbers}})

    def _apply(self, policy: Policy) -> int:
        current = self.policy
        if current and current.uid == policy.uid and policy.generation < current.generation:
            return 0
        self.policy = policy
        pool, options = self._worker.pool, self._worker.options
        self._worker.scheduler.threshold = policy.threshold
        budget = None if policy.budget_mib is None else policy.budget_mib * _MIB // options.block_bytes
        evicted = pool.bound(budget)
        if (events := pool.take_events()) and options.events:
            self._worker.publisher.publish(events)
        return evicted

    def _numbers(self) -> dict[str, Any]:
        worker, pool = self._worker, self._worker.pool
        scheduler = worker.scheduler
        return {
            "boot": self.boot,
            "sequence": worker.publisher.sequence - 1,
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "waiting_tokens": sum(len(s.tokens) - s.computed for s in scheduler.waiting),
            "blocks_total": worker.options.num_blocks,
            "blocks_free": pool.free,
            "blocks_idle": pool.idle,
            "idle_by_salt": {"0" * 32: pool.idle},
            "held_by_salt": {salt: [pool.idle, 0] for salt in self._promised()},
            "budget_blocks": pool.budget,
            "block_bytes": worker.options.block_bytes,
            "generation": self.policy.generation if self.policy else -1,
            "counts": {},
            "flushed": self._flushed,
            "suspended": worker.suspended,
            "unfinished": len(scheduler.running) + len(scheduler.waiting),
        }

    def _promised(self) -> list[str]:
        """Salts of tenants with a contract; who owns a block is not known here."""
        shares = self.policy.tenant_shares if self.policy else None
        return [one.salt for one in shares or () if one.guaranteed]
