"""``/console/tenants``: usage and limits of all, and the keys of one."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from cachefleet_controlplane.console.admin_calls import AdminAnswer
from cachefleet_controlplane.console.pages.tenant_limits import FIELDS, change_of, shown_values
from cachefleet_controlplane.console.pages.usage_page import usage_by, usage_total
from cachefleet_controlplane.console.visit import Visit
from cachefleet_core.tenancy import DEFAULT_TENANT

GRACES: Final = {"0": "at once", "3600": "in an hour", "86400": "in a day", "604800": "in a week"}
PAGE: Final = 200
"""Tenants on one page: with thousands it would hold up what else this process does."""
Item = Mapping[str, Any]
_FIRST: Final = "This is the first key: every request is asked for one from now on, and those without are refused."


async def tenants_page(visit: Visit) -> Response:
    """Tenants with what they used in the last day, a page of them; what was used by none that is there; contracts."""
    after = visit.request.query_params.get("after", "")
    tenants = await visit.ask("GET", "/tenants", {"limit": str(PAGE)} | ({"after": after} if after else {}))
    usage, access, contracts = [await visit.ask("GET", path) for path in ("/usage", "/access", "/contracts")]
    following = tenants.data.get("next") if tenants.ok else None
    used = usage_by(usage.items, "tenant")
    return visit.page(
        "tenants.html",
        items=tenants.items,
        more=f"/console/tenants?{urlencode({'after': following})}" if following else "",
        usage=used,
        others=() if after or following else sorted(used.keys() - {one["name"] for one in tenants.items}),
        default=DEFAULT_TENANT,
        access=access.data if access.ok else None,
        contracts=contracts.items,
        problem=tenants.problem or usage.problem,
        may_change=await visit.may("POST", "/tenants"),
    )


async def make_tenant(visit: Visit) -> Response:
    """Make a tenant, and go to its page."""
    form = await visit.form()
    name = form.get("name", "").strip()
    answer = await visit.ask("POST", "/tenants", body={"name": name})
    if not answer.ok:
        raise HTTPException(answer.status, answer.problem)
    return RedirectResponse(f"/console/tenants/{quote(name, safe='')}", status_code=303)


async def tenant_page(visit: Visit) -> Response:
    """One tenant: limits, usage, keys."""
    return await _shown(visit)


async def change_limits(visit: Visit) -> Response:
    """Set the limits that a form names, unless somebody else has changed the tenant since it was shown."""
    form = await visit.form()
    wanted, problems = change_of(form)
    if problems:
        return await _shown(visit, problem=" ".join(problems), refused=form, status=422)
    answer = await visit.ask("PATCH", _path(visit), body=wanted, if_match=form.get("etag", ""))
    if answer.status == HTTPStatus.PRECONDITION_FAILED:
        told = "It was changed by somebody else meanwhile, and not by you: what holds now is shown below."
        return await _shown(visit, problem=told, status=answer.status)
    if not answer.ok:
        return await _shown(visit, problem=answer.problem, refused=form, status=answer.status)
    return await _shown(visit, told="The limits hold from now on.")


async def new_key(visit: Visit) -> Response:
    """Make a key; it is shown this once."""
    await visit.form()
    return await _with_key(visit, "keys", {})


async def rotate_keys(visit: Visit) -> Response:
    """Make a key and let the others end; it is shown this once."""
    form = await visit.form()
    grace = form.get("grace", "")
    if grace not in GRACES:
        raise HTTPException(400, "Choose when the other keys end.")
    return await _with_key(visit, "keys/rotate", {"graceSeconds": float(grace)})


async def _with_key(visit: Visit, path: str, body: Item) -> Response:
    """Make a key, and say where it is the first one, which closes the gateway for everybody else."""
    before = await visit.ask("GET", "/access")
    answer = await visit.ask("POST", f"{_path(visit)}/{path}", body=body)
    first = answer.ok and before.ok and before.data["open"]
    return await _shown(visit, made=answer, told=_FIRST if first else "")


async def revoke_key(visit: Visit) -> Response:
    """End a key now."""
    form = await visit.form()
    answer = await visit.ask("DELETE", f"{_path(visit)}/keys/{form.get('key', '')}")
    told = ""
    if answer.ok:
        told = f"The key {answer.data['hint']}… is refused from now on."
        if not answer.data["stored"]:
            told += " The store does not take that yet: other replicas refuse it once it does."
    return await _shown(visit, told=told, problem=answer.problem)


def _path(visit: Visit) -> str:
    return f"/tenants/{visit.request.path_params['tenant']}"


async def _shown(
    visit: Visit,
    *,
    made: AdminAnswer | None = None,
    told: str = "",
    problem: str = "",
    refused: Mapping[str, str] | None = None,
    status: int = 200,
) -> Response:
    """The page of one tenant; with the form that was ``refused``, where one was."""
    tenant = await visit.ask("GET", _path(visit))
    if not tenant.ok:
        raise HTTPException(tenant.status, tenant.problem)
    name = tenant.data["name"]
    keys, usage = await visit.ask("GET", f"{_path(visit)}/keys"), await visit.ask("GET", "/usage", {"tenant": name})
    problem = problem or (made.problem if made else "") or keys.problem
    return visit.page(
        "tenant.html",
        status=made.status if made and not made.ok else status,
        tenant=tenant.data,
        etag=tenant.etag,
        fields=FIELDS,
        values=shown_values(tenant.data, refused),
        may_limit=await visit.may("PATCH", _path(visit)),
        keys=keys.items,
        usage=usage_total(usage.items),
        made=made.data if made and made.ok else None,
        told=told,
        problem=problem,
        may_change=await visit.may("POST", f"{_path(visit)}/keys"),
        graces=GRACES,
    )
