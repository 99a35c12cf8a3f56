"""Which part of a request a stack belongs to: the innermost frame decides whose module, or function, a part names.

Modules that several parts call (JSON members, contextlib, LRU maps) name none, so their time is their caller's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

SERVER: Final = "HTTP server: accept, head, write"
BODY: Final = "body and parse"
TENANT: Final = "tenant and limits"
INPUT: Final = "what is known of the prompt"
DECISION: Final = "decision"
LEDGER: Final = "in-flight ledger"
ATTEMPTS: Final = "attempts"
UPSTREAM: Final = "upstream client"
RELAY: Final = "relay"
RECORD: Final = "record"
METRICS: Final = "metrics and accounts"
LOOP: Final = "event loop and its sockets"
REST: Final = "the rest"
NATIVE: Final = "native transport's threads"
THREADS: Final = "other threads"

PARTS: Final = (
    *(SERVER, BODY, TENANT, INPUT, DECISION, LEDGER, ATTEMPTS),
    *(UPSTREAM, RELAY, RECORD, METRICS, LOOP, REST, NATIVE, THREADS),
)

Place = tuple[str, str]
"""A frame's module and the qualified name of its function."""

_G: Final = r"cachefleet_controlplane\.gateway\."
_C: Final = r"cachefleet_controlplane\."
# The first pattern counts that matches the whole of "module:function".
_RULES: Final = tuple(
    (re.compile(pattern), part)
    for pattern, part in (
        # Functions that belong elsewhere than the rest of their module.
        (rf"{_C}fleet\.fleet:Fleet\.(begin|_changed|served).*", LEDGER),
        (rf"{_C}workers\.registry:Registry\.(sent|_learn).*", LEDGER),
        (rf"{_C}workers\.worker:Worker\.(use|served|_answered|room).*", LEDGER),
        (rf"{_G}place\.request_queue:.*", LEDGER),
        (rf"{_G}retry\.worker_choice:WorkerChoice\.(free|_chosen)", LEDGER),
        (rf"{_G}retry\.exchange:Exchange\.(_pump|_relay)", RELAY),
        (rf"{_G}retry\.resume:Resumption\.(relayed|breaks|outcome|stopped|survives)", RELAY),
        (rf"{_G}retry\.stalled_attempts:StalledAttempts\.(heard|_heard)", RELAY),
        (rf"{_G}request\.decision_trace:.*", RECORD),
        (rf"{_C}wire\.http_exchange:(_?read.*|_check_length)", BODY),
        # What a worker is sent and answers.
        (rf"{_G}send\.answers\..*", RELAY),
        (rf"{_G}send\.worker_answer:AnswerStream\.more", RELAY),
        (r"cachefleet_runtime\.sse:.*", RELAY),
        (rf"{_G}retry\.(stream_join|stop_strings):.*", RELAY),
        (rf"{_G}send\..*", UPSTREAM),
        # From the client, and to it.
        (r"(uvicorn|httptools|websockets)\b.*", SERVER),
        (rf"{_C}(transport\.\w+|wire\.http_exchange):.*", SERVER),
        (rf"{_G}(admit\.request_bodies|apis\..*):.*", BODY),
        (rf"{_G}(admit\.\w+|body_budget):.*", TENANT),
        (rf"{_C}tenants\..*", TENANT),
        # What is decided.
        (rf"{_G}(know|handles|converse|account\.hot_observer|place|request)\b.*", INPUT),
        (rf"{_C}pools\..*", INPUT),
        (rf"{_C}(routing|selection|index|fleet|workers\.(registry|worker|pool|sent_texts)).*", DECISION),
        (rf"{_C}workers\..*", LEDGER),
        (rf"{_G}retry\..*", ATTEMPTS),
        # What is kept of it.
        (rf"{_C}(store|history)\..*", RECORD),
        (rf"{_G}account\..*", RECORD),
        (rf"({_C}(metrics|exposition)|prometheus_client)\b.*", METRICS),
        (r"(uvloop|asyncio\.(events|base_events|runners|selector_events))\b.*", LOOP),
    )
)


def part_of(stack: Iterable[Place]) -> str:
    """Return the part of a stack, innermost frame first; REST where no frame names one."""
    return next((part for part in map(_named, stack) if part), REST)


@lru_cache(maxsize=65_536)
def _named(place: Place) -> str:
    text = ":".join(place)
    return next((part for pattern, part in _RULES if pattern.fullmatch(text)), "")
