"""``cachefleet lint``: what of a request's prompt will not be served from cache, before it is sent."""

from __future__ import annotations

import asyncio
import os
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer

from cachefleet_local.cli.listing import Column, Item, Output, listing, single
from cachefleet_local.cli.options import Format, body_of
from cachefleet_local.cli_errors import Exit, FailureError

MOST_BYTES: Final = 64 * 1024 * 1024
"""Of a file; a gateway takes no more either, as a rule."""
_MEMBERS: Final = ("messages", "input", "prompt")
"""What tells the API of a body, of which each has one."""
_KINDS: Final = {str: "text", list: "a list", dict: "an object", bool: "true or false"}


class Api(StrEnum):
    """Whose body it is."""

    CHAT = "chat"
    MESSAGES = "messages"
    RESPONSES = "responses"
    COMPLETIONS = "completions"


class Body(NamedTuple):
    """A request's body, as it is and by its members."""

    raw: bytes
    fields: Item
    api: Api


_PATHS: Final = {
    Api.CHAT: "/v1/chat/completions",
    Api.MESSAGES: "/v1/messages",
    Api.RESPONSES: "/v1/responses",
    Api.COMPLETIONS: "/v1/completions",
}
_PROMPTS: Final[dict[Api, tuple[str, tuple[type, ...], str]]] = {
    Api.CHAT: ("messages", (list,), "a list of messages"),
    Api.MESSAGES: ("messages", (list,), "a list of messages"),
    Api.RESPONSES: ("input", (str, list), "text, or a list of items"),
    Api.COMPLETIONS: ("prompt", (str, list), "text, a list of texts, or of token ids"),
}
"""The member that has the prompt, and what it may be."""


def _where(item: Item) -> str:
    """As in "system 0, character 47"."""
    if not item["part"]:
        return ""
    at = "" if item["character"] is None else f", character {item['character']}"
    return f"{item['part']} {item['index']}{at}"


FINDINGS: Final = (
    Column("", lambda item: item["severity"]),
    Column("CAUSE", lambda item: item["cause"], name=True),
    Column("WHERE", _where),
    Column("FROM TOKEN", lambda item: item["position"], right=True),
    Column("LOST", lambda item: item["tokens"], right=True),
    Column("SEEN IN", lambda item: "an earlier prompt" if item["compared"] else "its form"),
    Column("WHY", lambda item: item["why"], wide=True),
    Column("WHAT TO DO", lambda item: item["mend"]),
)


def lint(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Body of a request, as JSON; - reads standard input.")],
    *,
    api: Annotated[Api | None, typer.Option(help="Whose body it is. Default: as its members tell.")] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="An earlier request to compare with; without a gateway alone."),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Tokens of a block, without a gateway. Default: 16."),
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Have a gateway look: exact tokens, and the tenant's earlier prompts."),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Trust these certificates (PEM) of an https gateway, and no others."),
    ] = None,
    api_key_env: Annotated[
        str, typer.Option(metavar="NAME", help="The variable that holds the API key, where keys are needed.")
    ] = "CACHEFLEET_API_KEY",
    output: Format = Output.TABLE,
    json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
) -> None:
    """Tell what of a request's prompt will not be served from cache, before it is sent.

    Without --gateway by the form of the file alone: tokens are estimated by its bytes. With it nothing is sent to a
    worker but the wish to render it. Exit status 1 where there is a warning; notes are none.
    """
    body = _read(file, api)
    if gateway is None:
        _require(certificate is None, "--certificate goes with --gateway")
        report = _offline(body, against=against, block_size=block_size)
    else:
        _require(against is None and block_size is None, "--against and --block-size are for use without --gateway")
        report = _asked(body, gateway, os.environ.get(api_key_env, ""), certificate)
    typer.echo(_shown(report, Output.JSON if json else output))
    _fail_by_warnings(report, file)


def _require(holds: bool, message: str) -> None:  # noqa: FBT001 - it is an assertion
    """FailureError of bad input where it does not hold."""
    if not holds:
        raise FailureError([message], Exit.BAD_INPUT)


def _fail_by_warnings(report: Item, file: str) -> None:
    """Exit status 1 where there is a warning."""
    if warnings := sum(one["severity"] == "warning" for one in report["findings"]):
        raise FailureError([f"{file}: {warnings} {'warning' if warnings == 1 else 'warnings'}"])


def _read(file: str, api: Api | None) -> Body:
    """The body in a file, of this API or of the one that it is of. FailureError."""
    raw = body_of(file)
    if len(raw) > MOST_BYTES:
        raise FailureError([f"{file}: {len(raw)} bytes, allowed: up to {MOST_BYTES}"], Exit.BAD_INPUT)
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FailureError([f"{file}: no JSON: {error}"], Exit.BAD_INPUT) from error
    if not isinstance(fields, dict):
        raise FailureError([f"{file}: got {type(fields).__name__}, allowed: a JSON object"], Exit.BAD_INPUT)
    found = Body(raw, fields, api or _api_of(fields, file))
    _check(found, file)
    return found


def _api_of(fields: Item, file: str) -> Api:
    """By the members of a body. FailureError where none tells, or more than one."""
    told = [name for name in _MEMBERS if fields.get(name) is not None]
    if len(told) != 1:
        what = "has " + " and ".join(told) if told else "has neither messages nor input nor prompt"
        raise FailureError([f"{file}: {what}; say which with --api: {', '.join(Api)}"], Exit.BAD_INPUT)
    chat = Api.MESSAGES if "system" in fields else Api.CHAT
    return {"messages": chat, "input": Api.RESPONSES, "prompt": Api.COMPLETIONS}[told[0]]


def _check(body: Body, file: str) -> None:
    """FailureError where the member with the prompt is not there, or no prompt."""
    member, types, allowed = _PROMPTS[body.api]
    given: Any = body.fields.get(member)
    faults = [] if isinstance(given, types) else [(member, given)]
    if not faults and member == "messages":
        faults = [(f"messages[{at}]", one) for at, one in enumerate(given) if not isinstance(one, dict)][:1]
        allowed = "an object"
    for place, found in faults:
        got = "nothing" if found is None else _KINDS.get(type(found), "a number")
        raise FailureError([f"{file}: {place}: got {got}, allowed: {allowed}"], Exit.BAD_INPUT)


def _offline(body: Body, *, against: str | None, block_size: int | None) -> Item:
    """By the forms of the file, and of the earlier one."""
    # Few commands need the control plane's code.
    from cachefleet_controlplane.gateway.apis.parse import parse  # noqa: PLC0415
    from cachefleet_controlplane.gateway.apis.request_info import Endpoint  # noqa: PLC0415
    from cachefleet_controlplane.prompt_causes.prompt_lint import BLOCK_SIZE, lint_alone  # noqa: PLC0415
    from cachefleet_controlplane.wire.errors import ApiError  # noqa: PLC0415

    def ask(told: Body) -> Any:
        try:
            return parse(told.raw, Endpoint(_PATHS[told.api])).ask
        except ApiError as error:
            raise FailureError([str(error)], Exit.BAD_INPUT) from error

    earlier = None if against is None else ask(_read(against, body.api))
    salted = body.fields.get("cache_salt") is not None
    report = lint_alone(ask(body), earlier, block_size=block_size or BLOCK_SIZE, salted=salted)
    return dict(msgspec.to_builtins(report))


def _asked(body: Body, url: str, key: str, certificate: str | None) -> Item:
    """What a gateway finds. FailureError."""
    from pathlib import Path  # noqa: PLC0415

    from cachefleet_local.cli.gateway_client import (  # noqa: PLC0415 - few commands need aiohttp
        LaterError,
        gateway_access,
        gateway_client,
    )

    access = gateway_access(url, key, None if certificate is None else Path(certificate))
    sent = msgspec.json.encode(msgspec.json.decode(body.raw, type=dict[str, msgspec.Raw]) | _asking(body.api))

    async def ask() -> Item:
        async with gateway_client(access) as client:
            headers = {"content-type": "application/json"}
            _, told = await client.ask("POST", "/v1/route", data=sent, headers=headers)
            found: Item | None = told.get("lint")
            if found is None:
                raise FailureError([f"{access.url}: this gateway does not lint; is it an older release?"])
            return found

    try:
        return asyncio.run(ask())
    except LaterError as error:
        raise error.failure from error


def _asking(api: Api) -> dict[str, msgspec.Raw]:
    return {"lint": msgspec.Raw(b"true"), "endpoint": msgspec.Raw(msgspec.json.encode(_PATHS[api]))}


def _shown(report: Item, output: Output) -> str:
    if output in {Output.JSON, Output.YAML}:
        return single(report, FINDINGS, output)
    rows = listing(report["findings"], FINDINGS, output)
    if output is Output.NAME:
        return rows
    about = "" if report["exact"] else "about "
    head = f"{about}{report['prompt_tokens']:,} tokens, blocks of {report['block_size']}"
    beside = "beside an earlier prompt" if report["compared"] else "no earlier prompt to compare with"
    return f"{head}; {beside}\n{rows}" if report["findings"] else f"{head}; {beside}; nothing found"
