"""The fake engine as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import base64
import dataclasses
import signal
import sys
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from tests.fakes.engine import FakeEngine
from tests.fakes.options import EngineOptions


def main(arguments: list[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Every field of EngineOptions is an option; bytes are given in base64."""
    options = EngineOptions(**vars(_parser().parse_args(arguments)))
    asyncio.run(_serve(options))


async def _serve(options: EngineOptions) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with FakeEngine(options) as engine:
        ready = {"url": engine.url, "events": engine.events_endpoint, "replay": engine.replay_endpoint}
        sys.stdout.write(msgspec.json.encode(ready).decode() + "\n")
        sys.stdout.flush()
        await stop.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.engine", description=main.__doc__)
    hints = get_type_hints(EngineOptions)
    for field in dataclasses.fields(EngineOptions):
        name = "--" + field.name.replace("_", "-")
        kind = _plain(hints[field.name])
        if kind is bool:
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            parser.add_argument(name, type=kind, default=field.default)
    return parser


def _plain(hint: Any) -> Any:
    """``int`` of ``int | None``."""
    if get_origin(hint) in (Union, UnionType):
        return next(kind for kind in get_args(hint) if kind is not type(None))
    return base64.b64decode if hint is bytes else hint
