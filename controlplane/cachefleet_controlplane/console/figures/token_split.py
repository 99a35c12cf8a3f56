"""What became of each token of a prompt: from cache, lost against the prediction, held elsewhere, held nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_controlplane.console.figures.bar_parts import Part, stacked
from cachefleet_controlplane.console.figures.lost_causes import advice, prompt_cause_name

_KINDS: Final = {"first_seen": "nowhere", "last_block": "nowhere", "held_elsewhere": "elsewhere"}
_NOWHERE: Final = (
    "No candidate held them: they were never asked for before, or evicted since. What is behind the last whole block "
    "is always computed."
)


@dataclass(frozen=True, slots=True)
class Share:
    """Tokens that have one fate."""

    kind: str
    """served, lost, elsewhere or nowhere."""
    tokens: int
    title: str
    words: str
    action: str = ""


@dataclass(frozen=True, slots=True)
class TokenSplit:
    """The shares of one prompt, which add up to its tokens."""

    prompt_tokens: int
    shares: tuple[Share, ...]

    @property
    def computed(self) -> int:
        """Tokens that no cache served."""
        return sum(one.tokens for one in self.shares if one.kind != "served")

    @property
    def served(self) -> int:
        """Tokens from cache."""
        return self.prompt_tokens - self.computed

    @property
    def parts(self) -> tuple[Part, ...]:
        """The shares as a bar."""
        return stacked(((one.kind, one.title, one.tokens) for one in self.shares), self.prompt_tokens)


def token_split(item: Mapping[str, Any]) -> TokenSplit | None:
    """The split of a decision of the admin API; None where its answer did not tell what came from cache."""
    served = from_cache(item)
    if served is None:
        return None
    prompt = max(item["promptTokens"], served)
    shares = [Share("served", served, "from cache", _served(item))]
    if causes := item.get("lost"):
        accounted = (*shares, *_by_cause(causes))
        return TokenSplit(sum(one.tokens for one in accounted), tuple(one for one in accounted if one.tokens))
    lost = _lost(item, prompt - served)
    elsewhere = _elsewhere(item, served + sum(one.tokens for one in lost), prompt)
    known = [*shares, *lost, *elsewhere]
    rest = prompt - sum(one.tokens for one in known)
    return TokenSplit(prompt, tuple(one for one in (*known, _nowhere(item, rest)) if one.tokens))


def from_cache(item: Mapping[str, Any]) -> int | None:
    """Prompt tokens from cache, a Prefill worker's where one computed the prompt; None where nobody told."""
    cached: int | None = item["cachedTokens"]
    if cached is None or not _prefilled(item):
        return cached
    lost: int = sum(one["tokens"] for one in item.get("lost", ()))
    return max(0, int(item["promptTokens"]) - lost)


def _prefilled(item: Mapping[str, Any]) -> bool:
    """Whether a Prefill worker was asked: the answering one counts all that it brought over as cached."""
    return any(one["kind"] == "prefill" for one in item["attempts"])


def _served(item: Mapping[str, Any]) -> str:
    if _prefilled(item):
        return "of the Prefill worker, which computed the rest"
    predicted = item["predictedTokens"]
    if item["cachedTokens"] == predicted:
        return "exactly what was predicted"
    return f"{predicted:,} were predicted"


def _by_cause(causes: Sequence[Mapping[str, Any]]) -> Iterator[Share]:
    """The account that was kept of this very request, in the order of its prompt."""
    for one in causes:
        kind = _KINDS.get(one["cause"], "lost")
        if in_prompt := one.get("prompt"):
            yield from (_in_prompt(kind, loss) for loss in in_prompt)
            continue
        told = advice(one["cause"])
        yield Share(kind, one["tokens"], told.name, one["why"], told.action)


def _in_prompt(kind: str, loss: Mapping[str, Any]) -> Share:
    """Tokens that no worker held, by their cause in the prompt."""
    title = f"first seen: {prompt_cause_name(loss['cause'])}"
    return Share(kind, loss["tokens"], title, f"{loss['why']}{_from(loss)}", _sentence(loss["mend"]))


def _from(loss: Mapping[str, Any]) -> str:
    """Where the prompt leaves its nearest earlier one, as a sentence."""
    if loss["position"] is None:
        return ""
    place = {"tools": f", in tool {loss['index']}", "system": ", in the system prompt"}.get(loss["part"], "")
    place = place or (f", in message {loss['index']} ({loss['role']})" if loss["part"] else "")
    return f" From token {loss['position']:,} on{place}."


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}." if words else ""


def _lost(item: Mapping[str, Any], most: int) -> list[Share]:
    short = item["shortfall"]
    if not short:
        return []
    told = advice(short["cause"])
    words = f"{short['worker']} was expected to have them. {short['why']}"
    return [Share("lost", min(most, short["tokens"]), f"lost: {told.name}", words, told.action)]


def _elsewhere(item: Mapping[str, Any], at: int, prompt: int) -> list[Share]:
    """What another candidate held beyond ``at`` tokens."""
    others = [one for one in item["candidates"] if not one["chosen"] and one["matchedTokens"] > at]
    if not others:
        return []
    best = max(others, key=lambda one: one["matchedTokens"])
    told = advice("held_elsewhere")
    words = f"{best['worker']} held {best['matchedTokens']:,} tokens, and was not chosen: {item['why']}"
    return [Share("elsewhere", min(prompt, best["matchedTokens"]) - at, "held by another worker", words, told.action)]


def _nowhere(item: Mapping[str, Any], tokens: int) -> Share:
    if item["knowledge"] != "exact":
        words = "The prompt's blocks were not known, so nobody can tell whether a worker held them."
        return Share("nowhere", tokens, "not known", words, advice("not_rendered").action)
    return Share("nowhere", tokens, "held by no worker", _NOWHERE, "Lost hits tells how many such tokens were evicted.")
