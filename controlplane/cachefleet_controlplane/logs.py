"""Where and how this process logs: one handler on the root logger, JSON lines or text.

Fields given as ``extra=`` are part of a JSON line. Never log prompts, token ids, salts or credentials.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO

from pythonjsonlogger.json import JsonFormatter

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_JSON = "%(asctime)s %(levelname)s %(name)s %(message)s"
_CHATTY = ("uvicorn.access", "aiohttp.access", "alembic")


def configure(form: Literal["json", "text"], level: str, *, stream: TextIO | None = None) -> None:
    """Replace the root logger's handlers; call once, from ``__main__``."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_formatter(form))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _formatter(form: Literal["json", "text"]) -> logging.Formatter:
    if form == "text":
        return logging.Formatter(_TEXT)
    return JsonFormatter(_JSON, rename_fields={"asctime": "time", "levelname": "level", "name": "logger"})
