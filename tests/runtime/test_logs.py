"""Log lines a machine can read, or a person."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from cachefleet_runtime import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_json_lines_carry_fields_and_tracebacks() -> None:
    stream = io.StringIO()
    logs.configure("json", "INFO", stream=stream)
    try:
        int("x")
    except ValueError:
        logging.getLogger("a.b").exception("it failed", extra={"worker": "w-0"})
    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["message"], line["worker"]) == ("ERROR", "a.b", "it failed", "w-0")
    assert "ValueError: invalid literal" in line["exc_info"]
    assert "time" in line


def test_text_and_level() -> None:
    stream = io.StringIO()
    logs.configure("text", "WARNING", stream=stream)
    logging.getLogger("a").info("not this")
    logging.getLogger("a").warning("but this")
    assert stream.getvalue().endswith("WARNING a: but this\n")
    assert "not this" not in stream.getvalue()
