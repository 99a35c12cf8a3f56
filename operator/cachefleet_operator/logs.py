"""Where and how this process logs: one handler on the root logger, JSON lines or text."""

from __future__ import annotations

import logging
import sys
from typing import Literal

from pythonjsonlogger.json import JsonFormatter

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_JSON = "%(asctime)s %(levelname)s %(name)s %(message)s"


def configure(form: Literal["json", "text"], level: str) -> None:
    """Call once, from ``__main__``."""
    names = {"asctime": "time", "levelname": "level", "name": "logger"}
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_TEXT) if form == "text" else JsonFormatter(_JSON, rename_fields=names))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # It tells of every event it passes on; what becomes of them is told by us.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # Warns at each start that it does not handle signals, which is how we want it (see watch.py).
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
