"""Log lines a machine can read, or a person."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
from kopf._cogs.clients.errors import APINotFoundError

from cachefleet_runtime import logs

STAMP = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ"


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
    assert re.fullmatch(STAMP, line["time"])


def test_text_and_level() -> None:
    stream = io.StringIO()
    logs.configure("text", "WARNING", stream=stream)
    logging.getLogger("a").info("not this")
    logging.getLogger("a").warning("but this")
    assert re.fullmatch(rf"{STAMP} WARNING a: but this\n", stream.getvalue())
    assert "not this" not in stream.getvalue()


@pytest.mark.parametrize(("chosen", "form"), [("json", None), ("text", "json"), ("", "json")])
def test_why_a_process_does_not_start_is_told_in_the_format_that_was_chosen(
    chosen: str, form: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CACHEFLEET_LOG_FORMAT", chosen)
    logs.refuse(["CACHEFLEET_POOL: is missing", "and this"], form=form)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["message"] for line in lines] == ["CACHEFLEET_POOL: is missing", "and this"]
    assert all(re.fullmatch(STAMP, line["time"]) and line["level"] == "ERROR" for line in lines)


@pytest.mark.parametrize("chosen", ["text", ""])
def test_a_person_reads_it_as_it_is(
    chosen: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CACHEFLEET_LOG_FORMAT", chosen)
    logs.refuse(["CACHEFLEET_POOL: is missing"])
    assert capsys.readouterr().err == "CACHEFLEET_POOL: is missing\n"


@pytest.mark.parametrize(
    ("error", "told"), [(APINotFoundError(None, status=404, headers={}), False), (KeyError(), True)]
)
def test_a_watch_that_the_api_server_ends_is_no_traceback(error: Exception, told: bool) -> None:  # noqa: FBT001
    stream = io.StringIO()
    logs.configure("text", "INFO", stream=stream)
    logging.getLogger("kopf._core.reactor.orchestration").error("a watcher has failed", exc_info=error)
    assert (stream.getvalue() != "") is told
