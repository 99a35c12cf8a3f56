"""``/console/flush``: first what would be evicted, then evicting exactly that."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from cachefleet_controlplane.console.admin_calls import AdminAnswer
from cachefleet_controlplane.console.visit import Visit

KINDS: Final = {
    "pool": "a pool, as namespace/name",
    "worker": "a worker, by its name",
    "model": "a model or adapter",
    "tenant": "a tenant",
    "prompt": "what begins with a text",
}
_QUESTION: Final = ("POST", "/flush")


async def flush_page(visit: Visit) -> Response:
    """The form for what is to go."""
    return await _shown(visit, {})


async def flush_form(visit: Visit) -> Response:
    """A dry run; with ``confirmed`` the flush itself."""
    form = await visit.form()
    dry = "confirmed" not in form
    scope = scope_of(form)
    if scope is None:
        return await _shown(visit, form, problem="Say what is to go.")
    answer = await visit.ask(*_QUESTION, body={"scope": scope, "dryRun": dry})
    return await _shown(visit, form, answer=answer)


def scope_of(form: dict[str, str]) -> dict[str, Any] | None:
    """The scope that a form names; None where it names none."""
    kind, value = form.get("kind", ""), form.get("value", "").strip()
    if kind not in KINDS or not value:
        return None
    if kind != "prompt":
        return {kind: value}
    model = form.get("model", "").strip()
    return {"prompt": {"prompt": form["value"]}} | ({"model": model} if model else {})


async def _shown(
    visit: Visit, form: dict[str, str], *, answer: AdminAnswer | None = None, problem: str = ""
) -> Response:
    told = _words(answer) if answer else problem
    return visit.page(
        "flush.html",
        status=answer.status if answer and not answer.ok and answer.status != 404 else 200,
        allowed=await visit.may(*_QUESTION),
        kinds=KINDS,
        form=form,
        report=answer.data if answer and answer.ok else None,
        problem=told,
    )


def _words(answer: AdminAnswer) -> str:
    """What went wrong, "" where nothing did."""
    if answer.status == 403:
        return f"You may not flush: {answer.problem}."
    return answer.problem
