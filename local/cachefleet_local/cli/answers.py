"""Asks the admin API a question, and prints its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import typer

from cachefleet_local.cli.admin_client import AdminAccess, AdminClient, admin_client
from cachefleet_local.cli.listing import Column, Item, Output, listing, single


def ask(access: AdminAccess, question: Callable[[AdminClient], Awaitable[Any]]) -> Any:
    """The answer to a question."""

    async def answer() -> Any:
        async with admin_client(access) as client:
            return await question(client)

    return asyncio.run(answer())


def show_list(
    access: AdminAccess,
    question: Callable[[AdminClient], Awaitable[Any]],
    columns: Sequence[Column],
    output: Output,
) -> Mapping[str, Any]:
    """Print the items of an answer; the answer."""
    found: Mapping[str, Any] = ask(access, question)
    typer.echo(listing(list(found["items"]), columns, output))
    return found


def show_one(
    access: AdminAccess,
    question: Callable[[AdminClient], Awaitable[Any]],
    columns: Sequence[Column],
    output: Output,
    *,
    note: str = "",
) -> Item:
    """Print an answer of one item, and a note after it; the item."""
    item: Item = ask(access, question)
    typer.echo(single(item, columns, output))
    if note:
        typer.echo(note, err=True)
    return item
