"""One request of a client, from its arrival to its last attempt."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Final, Protocol

from cachefleet_native import Ask
from msgspec import Struct

from cachefleet_controlplane.gateway.apis.request_info import GENERATING, Endpoint, RequestInfo, wants_cached
from cachefleet_controlplane.gateway.handles.sending import Sending
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.request.hit_thresholds import NO_THRESHOLDS, HitThresholds
from cachefleet_controlplane.gateway.request.rendered_prompt import NOT_RENDERED, Rendering
from cachefleet_controlplane.gateway.request.resume_eligibility import ResumeLimits
from cachefleet_controlplane.gateway.send.answers.stream_filter import Passes
from cachefleet_controlplane.gateway.send.worker_answer import Answer
from cachefleet_controlplane.pools.cache_salts import isolation
from cachefleet_controlplane.routing.decision import Decision, Prompt
from cachefleet_controlplane.selection.eligibility import Duty
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.wire.http_exchange import Receive, Reply, Scope
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.engine.answer_replay import ReplayAsk
from cachefleet_core.pool.policy import Isolation

NO_PROMPT: Final = Prompt()
UNREAD: Final = RequestInfo(
    endpoint=Endpoint.COMPLETIONS,
    ask=Ask({}),
    model="",
    size=0,
    stream=False,
    usage_asked=False,
    ids_asked=False,
    ids_wanted=False,
    single=True,
    max_tokens=0,
)
"""Of a request whose body is not read yet."""
NO_MODEL: Final = ServedModel(
    name="", upstream="", base="", namespace="", pools=(), declared=(), max_model_len=None, created=0
)
"""Of a request whose model is not known yet."""

Served = Callable[[], Decision | None]
"""Returns who answered."""


class Arrival(Struct, frozen=True):
    """A request as it came by HTTP, its reply, and the notes on it."""

    scope: Scope
    receive: Receive
    reply: Reply
    trace: DecisionTrace
    began: float
    """When it came to its handler, in monotonic seconds."""


NO_ARRIVAL: Final[Any] = None
"""Of a request that no client waits for: it is only rendered, or decided on."""


class AnswerStage(Protocol):
    """What the turn of a conversation does with a request and its answer."""

    passes: ClassVar[Passes]
    """Events of a stream that need not go through ``passed``."""

    def placed(self, request: Request, served: Served) -> Request:
        """Plan the turn; ``served`` returns who answered. Return the request with the worker to prefer."""
        ...

    def begun(self, info: RequestInfo) -> None:
        """The answer's stream has begun; ``info`` is the request without its members."""
        ...

    async def passed(self, events: Sequence[bytes]) -> Sequence[bytes]:
        """Return events for the client, edited where need be; commits before it returns the last one."""
        ...

    async def answered(self, answer: Answer) -> Answer:
        """As ``passed``, for a whole answer."""
        ...


class Request(Struct, frozen=True):
    """What is known of a request; a layer that learns more of it passes a replaced one on."""

    info: RequestInfo
    model: ServedModel
    tenant: TenantRecord
    arrival: Arrival = NO_ARRIVAL
    """NO_ARRIVAL where no client waits for an answer."""
    turn: AnswerStage | None = None
    """Its turn in a conversation, once that has begun."""
    headers: Sequence[Header] = ()
    """The client's, as far as workers get them."""
    client: Any = None
    """The native request of the client; None where no native code serves it."""
    wait_seconds: int | None = None
    """The longest that its client has it wait for room; None leaves that to its pools."""
    received_bytes: int = 0
    """Of its body, as it counts against the budget of all bodies."""
    answered: bool = False
    """A worker will answer it, not only render it."""
    told: bool = False
    """Its client asks to be told what was decided."""
    keep_ids: bool = False
    """The prompt's token ids are wanted, where they can be had."""

    salt: str = ""
    gate: HitThresholds = NO_THRESHOLDS
    limits: ResumeLimits | None = None
    """Limits of resuming its answer from its tokens; None where no other worker can."""
    replay: ReplayAsk | None = None
    """What workers are asked for, so that another one can make its stream again; None where that is not needed."""
    unresumed: str = ""
    """Why neither of both can be, as a code; "" where one can."""
    body: bytes = b""
    """The body that a worker is sent, marked where the worker may hand the request back."""
    members: int = 0
    """Members of ``body``."""
    continuing: Sending | None = None
    """What workers keep of the conversation; None where requests are always sent whole."""

    rendering: Rendering = NOT_RENDERED
    prompt: Prompt = NO_PROMPT
    render_seconds: float = 0.0
    learn: Callable[[int], None] = lambda _: None
    """To be called with the number of tokens that the prompt turned out to have."""

    preferred: str = ""
    """Full name of the worker that is chosen among equals; "" for none."""
    sent_to: Callable[[str], None] = lambda _: None
    """To be called with the full name of the worker that it is sent to."""
    duty: Duty = Duty.ANSWER
    """Whether workers are chosen to answer or to prefill."""

    def __repr__(self) -> str:
        """Without anything of its body or headers, which no log may hold."""
        return f"Request({self.info.endpoint}, model={self.model.name!r}, tenant={self.tenant.name!r})"

    @property
    def cached_only(self) -> bool:
        """Whether its client prefers a refusal to an answer that has to be computed."""
        return self.info.endpoint in GENERATING and wants_cached(self.headers)

    @property
    def fleet(self) -> tuple[str, str]:
        """Namespace and model of the pools whose workers may answer it."""
        return self.model.namespace, self.model.base

    @property
    def asked_name(self) -> str:
        """The client's name for the model, where its answer would have another: that of its workers; else ""."""
        return self.info.model if self.info.model != self.model.upstream else ""

    @property
    def line(self) -> tuple[str, str]:
        """Its line in the queue; prefill has a line of its own, since other workers need room for it."""
        name = self.model.base
        return self.model.namespace, name if self.duty is Duty.ANSWER else f"{name} {self.duty}"

    @property
    def may_be_held(self) -> bool:
        """Whether a worker may hold it: it is to be answered, and has one prompt."""
        return self.answered and self.info.prompts == 1

    @property
    def roles(self) -> str:
        """Role of the workers asked, for error messages; "" where all workers are alike."""
        if self.duty is Duty.PREFILL:
            return "prefill"
        return "decode" if self.gate.split else ""

    def describe(self, trace: DecisionTrace) -> None:
        """Note what its decisions rest on besides the fleet: its tenant, and how its prompt is known."""
        rule = isolation(self.model.declared)
        trace.tenant, trace.isolation = self.tenant.name, rule
        trace.salt_version = None if rule is Isolation.SHARED else self.tenant.salt_version
        trace.rung, trace.render_failure = self.rendering.rung, self.rendering.reason
        trace.block_size, trace.keys = self.prompt.block_size, self.prompt.keys
        trace.single, trace.reads_cache = self.info.single, self.info.reads_cache


Layer = Callable[[Request], Coroutine[Any, Any, None]]
"""Answers a request to its client, mostly by having the next layer answer it."""
