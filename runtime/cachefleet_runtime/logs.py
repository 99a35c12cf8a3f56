"""Logging set-up of a process: one handler on the root logger, JSON lines or text.

Times are UTC, in ISO 8601. Fields given as ``extra=`` are part of a JSON line. Never log prompts, token ids, salts or
credentials.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal, TextIO

from pythonjsonlogger.json import JsonFormatter

Form = Literal["json", "text"]

_TEXT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_JSON: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_SECONDS: Final = "%Y-%m-%dT%H:%M:%S"
_TIME: Final = "%s.%03dZ"
"""Of the seconds and milliseconds, with the zone."""
_NAMES: Final = {"asctime": "time", "levelname": "level", "name": "logger"}
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_QUIET: Final[Mapping[str, int]] = MappingProxyType(
    {
        "uvicorn.access": logging.WARNING,
        "aiohttp.access": logging.WARNING,
        "alembic": logging.WARNING,
        # Logs every event that it passes on; the operator logs what it does about them.
        "kopf": logging.WARNING,
        # Warns at each start that it does not handle signals, as intended (watching/kopf_thread.py).
        "kopf._core.reactor.running": logging.ERROR,
    }
)


_ANSWERS: Final = "kopf._cogs.clients.errors"
"""Kopf's module of errors that are answers of the API server."""


def _is_logged(record: logging.LogRecord) -> bool:
    """Whether to log a record: not Kopf's traceback of a watch that the API server ended; the operator logs that."""
    error = record.exc_info[0] if record.exc_info else None
    return error is None or error.__module__ != _ANSWERS


def configure(form: Form, level: str, *, fields: Mapping[str, str] = _NOTHING, stream: TextIO | None = None) -> None:
    """Replace the root logger's handlers; call once, from ``__main__``. ``fields`` are part of each JSON line."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_formatter(form, fields))
    handler.addFilter(_is_logged)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(least)


def refuse(lines: Iterable[str], *, form: str | None = None) -> None:
    """Write why a process does not start, before it has a log: JSON lines where the environment or ``form`` says so."""
    chosen = os.environ.get("CACHEFLEET_LOG_FORMAT") if form is None else form
    for line in lines:
        stamp = _TIME % (time.strftime(_SECONDS, time.gmtime()), 0)
        fields = {"time": stamp, "level": "ERROR", "logger": "settings", "message": line}
        sys.stderr.write(f"{json.dumps(fields) if chosen == 'json' else line}\n")


def _formatter(form: Form, fields: Mapping[str, str]) -> logging.Formatter:
    text = form == "text"
    found = logging.Formatter(_TEXT) if text else JsonFormatter(_JSON, rename_fields=_NAMES, static_fields=dict(fields))
    found.converter = time.gmtime
    found.default_time_format, found.default_msec_format = _SECONDS, _TIME
    return found
