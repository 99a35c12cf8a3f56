"""``cachefleet lint``: on a file alone, and by a real gateway before a fake engine; exit statuses, forms, errors."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachefleet_local import __main__ as cli
from tests.controlplane.gateway.harness import MODEL, engine, front
from tests.local.test_command_line import run

RULES = "Answer what travellers ask about trains, and keep to what the timetable says. " * 8
Lint = Callable[..., tuple[int, str, str]]


def body(system: str = f"Today is 2026-11-27. {RULES}", **more: Any) -> str:
    said = [{"role": "system", "content": system}, {"role": "user", "content": "When does it go?"}]
    return json.dumps({"model": MODEL, "messages": said} | more)


@pytest.fixture
def lint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Lint:
    """The command on a file with this text."""

    def linted(text: str, *arguments: str, against: str | None = None) -> tuple[int, str, str]:
        file = tmp_path / "body.json"
        file.write_text(text)
        if against is not None:
            (tmp_path / "earlier.json").write_text(against)
            arguments = (*arguments, "--against", str(tmp_path / "earlier.json"))
        return run("lint", str(file), *arguments, monkeypatch=monkeypatch, capsys=capsys)

    return linted


def test_a_warning_is_exit_status_1(lint: Lint) -> None:
    status, out, err = lint(body())
    assert status == 1
    assert out.startswith("about ")
    assert "warning  time" in out
    assert "system 0, character 9" in out
    assert err.strip().endswith("body.json: 1 warning")


@pytest.mark.parametrize("system", [RULES, f"Rules of 2026-01-15. {RULES}"])
def test_notes_and_nothing_are_exit_status_0(lint: Lint, system: str) -> None:
    status, out, err = lint(body(system))
    assert (status, err) == (0, "")
    assert ("nothing found" in out) is (system == RULES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"messages": "x"}', "messages: got text, allowed: a list of messages"),
        ('{"messages": [{"role": "user"}, 3]}', "messages[1]: got a number, allowed: an object"),
        ('{"system": "x", "messages": {}}', "messages: got an object, allowed: a list of messages"),
        ('{"input": true}', "input: got true or false, allowed: text, or a list of items"),
        ('{"prompt": 3}', "prompt: got a number, allowed: text, a list of texts, or of token ids"),
    ],
)
def test_a_prompt_that_is_none_is_bad_input(lint: Lint, text: str, words: str) -> None:
    status, out, err = lint(text)
    assert (status, out) == (2, "")
    assert err.strip().endswith(f"body.json: {words}")


def test_a_member_that_the_api_needs_and_is_not_there_is_bad_input(lint: Lint) -> None:
    assert (
        lint('{"prompt": "x"}', "--api", "chat")[2]
        .strip()
        .endswith("messages: got nothing, allowed: a list of messages")
    )
    assert (
        lint(body(), against='{"messages": 3}')[2]
        .strip()
        .endswith("messages: got a number, allowed: a list of messages")
    )


def test_json_is_the_whole_report(lint: Lint) -> None:
    status, out, _ = lint(body(), "--json", "--block-size", "32")
    report = json.loads(out)
    assert (status, report["block_size"], report["exact"]) == (1, 32, False)
    assert report["findings"][0]["mend"]
    assert lint(body(), "-o", "json", "--block-size", "32")[1] == out


def test_it_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body().encode())))
    assert run("lint", "-", "-o", "name", monkeypatch=monkeypatch, capsys=capsys)[:2] == (1, "time\n")


def test_an_earlier_request_is_compared_with(lint: Lint) -> None:
    tools = [{"type": "function", "function": {"name": name, "description": RULES}} for name in ("one", "two")]
    status, out, _ = lint(body(RULES, tools=tools), "--json", against=body(RULES, tools=tools[::-1]))
    [found] = json.loads(out)["findings"]
    assert (status, found["cause"], found["compared"]) == (1, "tool_order", True)


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ('{"messages": ', (), "no JSON: Input data was truncated"),
        ("[1]", (), "got list, allowed: a JSON object"),
        ('{"model": "m"}', (), "has neither messages nor input nor prompt; say which with --api: chat, messages,"),
        ('{"input": "a", "prompt": "b"}', (), "has input and prompt; say which with --api"),
        ('{"messages": [], "model": 7}', (), "`model` must be text"),
        (body(), ("--api", "realtime"), "'realtime' is not one of 'chat', 'messages', 'responses', 'completions'"),
        (body(), ("--block-size", "0"), "'--block-size': Input should be greater than or equal to 1"),
        (body(), ("--certificate", "a.pem"), "--certificate goes with --gateway"),
        (body(), ("--gateway", "localhost"), "allowed: an address like http://127.0.0.1:8080"),
        (body(), ("--gateway", "http://127.0.0.1:1", "--block-size", "16"), "are for use without --gateway"),
    ],
)
def test_bad_input_is_exit_status_2_and_says_what_is_allowed(
    lint: Lint, text: str, arguments: tuple[str, ...], said: str
) -> None:
    status, out, err = lint(text, *arguments)
    assert (status, out) == (2, "")
    assert said in " ".join(err.split())


def test_a_gateway_that_is_not_there_is_exit_status_1(lint: Lint) -> None:
    status, _, err = lint(body(), "--gateway", "http://127.0.0.1:1")
    assert status == 1
    assert "cannot reach the gateway at http://127.0.0.1:1" in " ".join(err.split())


async def test_a_gateway_tells_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "body.json"
    file.write_text(body())

    def main(url: str) -> int:
        monkeypatch.setattr(sys, "argv", ["cachefleet", "lint", str(file), "--gateway", url, "--json"])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0)

    async with engine() as one, front([one]) as gate:
        gate.report(0)
        status = await asyncio.to_thread(main, f"{gate.url}/v1")
        report = json.loads(capsys.readouterr().out)
    assert (status, report["exact"]) == (1, True)
    assert [found["cause"] for found in report["findings"]] == ["time", "last_block"]
