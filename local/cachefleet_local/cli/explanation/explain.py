"""``cachefleet explain``: prints one routing decision, made or hypothetical."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from cachefleet_local.cli.admin_client import AdminClient
from cachefleet_local.cli.answers import Asker, Show
from cachefleet_local.cli.completion import names
from cachefleet_local.cli.explanation import bars
from cachefleet_local.cli.listing import Column, Item, Output, listing, single
from cachefleet_local.cli.options import body_of, showing
from cachefleet_local.cli_errors import Exit, FailureError

SHOWN_SECONDS: Final = 0.0005
WIDTH: Final = 100
"""Where there is no terminal whose width could be followed."""

DecisionId = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="Of a decision, as the header x-cachefleet-decision told it.",
        autocompletion=names("decisions", "id"),
    ),
]
Body = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Body of a request to decide on without sending it; - reads standard input."),
]
RequestId = Annotated[str | None, typer.Option(metavar="ID", help="The client's x-request-id, in place of the id.")]
Tenant = Annotated[
    str | None,
    typer.Option(
        help="Whose request --body is. Default: the default tenant's.", autocompletion=names("tenants", "name")
    ),
]


@showing
def explain(
    show: Show,
    decision: DecisionId = None,
    *,
    request_id: RequestId = None,
    body: Body = None,
    tenant: Tenant = None,
) -> None:
    """Explain a decision: the candidates, what each held and would have cost, and what the cache then did.

    With --body: what would be decided for that request now. Nothing is sent to a worker but the wish to render it.
    """
    if [decision, request_id, body].count(None) != 2:
        ways = "the ID of a decision, --request-id of its request, or --body with a request"
        raise FailureError([f"give {ways}: one of them"], Exit.BAD_INPUT)
    if tenant is not None and body is None:
        raise FailureError(["--tenant goes with --body: a decision that was made has its tenant"], Exit.BAD_INPUT)
    asked = None if body is None else body_of(body)
    asker = Asker(show.where)
    if request_id is not None:
        decision = asker(lambda client: _decision_of(client, request_id))
    found = asker(lambda client: _fetch(client, decision or "", asked, tenant))
    typer.echo(_shown(found, show.output))


def _shown(item: Item, output: Output) -> str:
    match output:
        case Output.JSON | Output.YAML:
            return single(item, CANDIDATES, output)
        case Output.NAME:
            return str(item["id"])
        case _ if sys.stdout.isatty():
            colour = not os.environ.get("NO_COLOR")
            return explained(item, width=shutil.get_terminal_size().columns, colour=colour)
        case _:
            return explained(item)


def explained(item: Item, *, width: int = WIDTH, colour: bool = False) -> str:
    """A decision of the admin API as lines of text, without a newline at the end."""
    facts = list(_facts(item))
    names = max(len(name) for name, _ in facts)
    lines = [f"{name.ljust(names)}  {told}" for name, told in facts]
    lines += _bars(item, width=width, colour=colour)
    if item["candidates"]:
        lines += ["", listing(item["candidates"], _columns(item["candidates"]), Output.TABLE)]
    if left_out := item["candidatesLeftOut"]:
        lines.append(f"and {left_out} more")
    return "\n".join(lines)


def _bars(item: Item, *, width: int, colour: bool) -> Iterator[str]:
    """What became of the prompt, and what each candidate would have cost."""
    if tokens := bars.tokens(item):
        predicted = min(item["predictedTokens"], item["promptTokens"])
        expected = {bars.SERVED: predicted, bars.COMPUTED: item["promptTokens"] - predicted}
        yield f"\nOf {item['promptTokens']:,} tokens of the prompt, from cache"
        rows = [("predicted", f"{predicted:,}", expected), ("served", f"{item['cachedTokens']:,}", tokens)]
        yield from bars.chart(rows, width=width, colour=colour)
    yield from _lost(item.get("lost", ()))
    if candidates := item["candidates"]:
        yield "\nSeconds that it would cost"
        yield from bars.chart([_cost_row(one) for one in candidates], width=width, colour=colour)


def _lost(causes: Sequence[Item]) -> Iterator[str]:
    """Why tokens of the prompt were computed, in its order."""
    if not causes:
        return
    yield f"\n{sum(one['tokens'] for one in causes):,} tokens of the prompt, not served from cache as far as is told"
    figures = [f"{one['tokens']:,}" for one in causes]
    wide, names = max(map(len, figures)), max(len(one["cause"]) for one in causes)
    for figure, one in zip(figures, causes, strict=True):
        yield f"{figure:>{wide}}  {one['cause']:<{names}}  {one['why']}"
        yield from _in_prompt(one.get("prompt", ()), wide)


def _in_prompt(causes: Sequence[Item], wide: int) -> Iterator[str]:
    """Why tokens were first seen: where the prompt leaves its nearest earlier one."""
    for one in causes:
        place = f" ({where})" if (where := _place(one)) else ""
        mend = f" Mend: {one['mend']}." if one["mend"] else ""
        yield f"{'':>{wide}}  {one['tokens']:,} {one['cause']}{place}: {one['why']}{mend}"


def _place(loss: Item) -> str:
    """Where a prompt leaves its nearest earlier one; "" where that is not told."""
    if loss["position"] is None:
        return ""
    role, index = loss["role"], loss["index"]
    at = f", {loss['part']} {index}" if loss["part"] in {"tools", "message"} else f", {loss['part']}"
    said = f" of {role}" if role and loss["part"] != "system" and loss["part"] != "tools" else ""
    return f"from token {loss['position']:,}{at if loss['part'] else ''}{said}"


def _cost_row(candidate: Item) -> bars.Row:
    name = f"{'*' if candidate['chosen'] else ' '}  {_worker(candidate)}"
    return name, f"{candidate['seconds']:.3f}", bars.costs(candidate)


def _facts(item: Item) -> Iterator[tuple[str, str]]:
    yield "decision", f"{item['id']}, {item['at'][:19].replace('T', ' ')} UTC"
    yield "request", f"{item['model']}, {item['endpoint']}, {item['promptTokens']} prompt tokens"
    yield "tenant", _tenant(item)
    yield "knowledge", _knowledge(item)
    yield "verdict", f"{item['verdict']}{_to(item)} ({item['policy']}, {item['reason']})"
    yield "why", item["why"]
    yield "predicted", f"{item['predictedTokens']} tokens from cache{_in_flight(item)}"
    if costs := next((", ".join(_costs(one)) for one in item["candidates"] if one["chosen"]), ""):
        yield "costs", costs
    if item["status"]:
        yield "answer", ", ".join(_answer(item))
    if outcome := item["continuation"]:
        yield "continuation", outcome
    for attempt in item["attempts"]:
        yield "attempt", _attempt(attempt)
    if short := item["shortfall"]:
        yield "shortfall", f"{short['tokens']} tokens of {short['worker']} ({short['cause']}): {short['why']}"


def _in_flight(item: Item) -> str:
    """What of it no report shows yet, and what the choice counted on besides: blocks of requests just sent there."""
    chosen = next((one for one in item["candidates"] if one["chosen"]), None)
    if chosen is None:
        return ""
    coming = item["predictedTokens"] - chosen["predictedTokens"]
    sent = chosen["expectedTokens"] - max(item["predictedTokens"], chosen["predictedTokens"])
    told = f", {coming} of them from requests in flight there" if coming > 0 else ""
    return told + (f", perhaps {sent} more from requests just sent there" if sent > 0 else "")


def _sent(candidate: Item) -> int:
    """Tokens of the prompt that are expected of requests just sent there, beyond what its reports show."""
    return max(0, int(candidate["expectedTokens"]) - int(candidate["predictedTokens"]))


def _tenant(item: Item) -> str:
    rule = {"Shared": ", blocks shared with all", "PerTenant": f", own blocks, salt version {item['saltVersion']}"}
    return (item["tenant"] or "not recorded") + rule.get(item["isolation"], "")


def _knowledge(item: Item) -> str:
    told = [item["rung"] and f"ids from {item['rung']}", item["renderFailure"]]
    more = ", ".join(part for part in told if part and part != "ids from none")
    return f"{item['knowledge']} ({more})" if more else str(item["knowledge"])


def _to(item: Item) -> str:
    return f" to {item['worker']} of {item['pool']}" if item["worker"] else ""


def _costs(item: Item) -> Iterator[str]:
    """What the chosen worker's blocks and other requests lose by it."""
    if item.get("loadedTokens"):
        yield _loading(item["loadedTokens"], item["loadingSeconds"], measured=item.get("loadingMeasured", False))
    if seconds := item.get("adapterSeconds"):
        yield f"loads the adapter onto a device that is full of others in {seconds:.3f} s (assumed)"
    if item["evictedTokens"]:
        yield f"evicts {item['evictedTokens']:,} tokens, worth {item['worthTokens']:,}"
    if item["othersSeconds"] >= SHOWN_SECONDS:
        yield f"others wait {item['othersSeconds']:.3f} s in all"
    if item["paidSeconds"] >= SHOWN_SECONDS:
        yield f"{item['paidSeconds']:.3f} s paid by waiting for its prefix"


def _loading(tokens: int, seconds: float, *, measured: bool) -> str:
    rate = f"{tokens / seconds:,.0f} tokens/s, " if seconds else ""
    return f"loads {tokens:,} tokens in {seconds:.3f} s ({rate}{'measured' if measured else 'assumed'})"


def _answer(item: Item) -> Iterator[str]:
    yield f"status {item['status']}"
    if item["queuedSeconds"] is not None:
        yield f"waited {item['queuedSeconds']:.1f} s for room"
    if item["ttftSeconds"] is not None:
        yield f"first token after {1000 * item['ttftSeconds']:.0f} ms"
    if item["cachedTokens"] is not None:
        yield f"{item['cachedTokens']} tokens from cache"
    if ended := item.get("endedBy"):
        made = "" if item["completionTokens"] is None else f" after {item['completionTokens']} tokens"
        yield f"ended by the {ended}{made}"


def _attempt(attempt: Item) -> str:
    parts = [attempt["worker"], *(["prefill"] if attempt["kind"] == "prefill" else []), attempt["outcome"]]
    if attempt["threshold"]:
        parts.append(f"threshold {attempt['threshold']:g}")
    if attempt["status"] is not None:
        parts.append(f"status {attempt['status']}")
    if attempt["seconds"] is not None:
        parts.append(f"{attempt['seconds']:.2f} s")
    if why := attempt.get("unresumed"):
        words = UNRESUMED.get(why, "")
        parts.append(f"not resumed: {why}{f' ({words})' if words else ''}")
    return ", ".join(parts)


def _worker(item: Item) -> str:
    return f"{item['worker']}#{item['rank']}" if item["rank"] else str(item["worker"])


def _age(item: Item) -> object:
    return None if item["reportAge"] is None else f"{item['reportAge']:.1f} s"


def _blocks(item: Item) -> object:
    free = "?" if item["freeBlocks"] is None else item["freeBlocks"]
    return f"{item['neededBlocks']}/{free}"


UNRESUMED: Final = {
    "choices": "several choices or prompts end up in different states",
    "diverged": "the stream that was made again was another one",
    "embeds": "the prompt is no list of token ids",
    "grammar": "a grammar beside a reasoning parser begins where the thought ends, which is not restored",
    "ids": "the prompt's ids, or the text of all ids, had not come",
    "logprobs": "those of the prompt, or of all tokens, are in no record",
    "no_room": "too much was kept of other streams",
    "not_recorded": "its worker has no plugin that records it, or nothing had come",
    "not_replayed": "no other worker has a plugin that makes it again",
    "penalties": "they count what was produced, which this engine cannot restore",
    "prompt": "the other worker makes another prompt of the request",
    "rounds": "the server called a tool itself, and asked its engine again",
    "sampling": "a sampling parameter that the plugin does not know",
    "seed": "how many random numbers were drawn depends on sampler and device",
    "split_roles": "its prompt was computed by a Prefill worker, whose blocks serve one attempt",
    "stops": "its worker kept text back that may be a stop string's",
    "threshold": "the hit threshold is its caller's own",
    "too_long": "its body or record is longer than what is kept",
}
"""Why nobody went on with a stream, by the codes of a record (docs/decisions.md)."""
CANDIDATES: Final = (
    Column("", lambda item: "*" if item["chosen"] else " "),
    Column("WORKER", _worker),
    Column("POOL", lambda item: item["pool"]),
    Column("MATCHED", lambda item: item["matchedTokens"], right=True),
    Column("REPORT", _age, right=True),
    Column("REQUESTS", lambda item: item["requests"], right=True),
    Column("QUEUED", lambda item: item["queuedTokens"], right=True),
    Column("IN FLIGHT", lambda item: item["inflightTokens"], right=True),
    Column("COMPUTE", lambda item: item["uncachedTokens"], right=True),
    Column("EVICT", lambda item: item["evictedTokens"], right=True),
    Column("WORTH", lambda item: item["worthTokens"], right=True),
    Column("OTHERS", lambda item: f"{item['othersSeconds']:.3f} s", right=True),
    Column("TOKENS/S", lambda item: f"{item['tokensPerSecond']:.0f}", right=True),
    Column("COST", lambda item: f"{item['seconds']:.3f} s", right=True),
    Column("NEEDS/FREE", _blocks, right=True),
    Column("FITS", lambda item: "yes" if item["fits"] else "no"),
)


_SENT: Final = Column("SENT", _sent, right=True)


def _columns(candidates: Sequence[Item]) -> Sequence[Column]:
    """With what is in flight behind what is held, where it counted anywhere."""
    at = [column.title for column in CANDIDATES].index("MATCHED") + 1
    return (*CANDIDATES[:at], _SENT, *CANDIDATES[at:]) if any(map(_sent, candidates)) else CANDIDATES


def _decision_of(client: AdminClient, request_id: str) -> str:
    """The latest decision for a request."""
    items = client.get("decisions", {"requestId": request_id, "limit": "1"})["items"]
    if not items:
        raise FailureError([f"no decision for a request {request_id} is known; old ones are forgotten"])
    return str(items[0]["id"])


def _fetch(client: AdminClient, decision: str, body: bytes | None, tenant: str | None) -> Any:
    if body is None:
        return client.get(f"decisions/{quote(decision, safe='')}")
    return client.send("explain", body, {"tenant": tenant} if tenant else {})
