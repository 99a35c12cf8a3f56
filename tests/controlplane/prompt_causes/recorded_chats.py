"""Recorded chats of an agent with its customers, as prompts: none has a cause of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from bench.replay_work import TRACES
from tests.controlplane.prompt_causes.prompts import Body

RECORDED: Final = TRACES / "tau-bench" / "airline.json"
TIME: Final = "2024-05-15 15:00:00 EST"
HEADING: Final = "# Airline Agent Policy"
DESK: Final = "Desk 4711"
"""In the system text, behind its heading."""
TURNS: Final = 8
"""Of a chat, the first ones."""


@cache
def chats(count: int) -> list[list[Body]]:
    """The messages of chats, in the order of their tasks: several chats of one task come after each other."""
    found = sorted(json.loads(Path(RECORDED).read_text()), key=lambda one: (one["task_id"], one["trial"]))
    read = [[_said(message) for message in one["traj"]] for one in found]
    return [messages for messages in read if len(messages) > 2 * TURNS][:count]


def _said(message: Mapping[str, Any]) -> Body:
    """A message as templates of this test take it: calls of tools as text."""
    called = json.dumps(message["tool_calls"][0]["function"]) if message.get("tool_calls") else ""
    content = (message.get("content") or "").replace(HEADING, f"{HEADING}\n\n{DESK}")
    return {"role": message["role"], "content": content + called}


def retold(body: Body, change: str, to: str) -> Body:
    """With another text in the place of one in the system text."""
    first, *rest = body["messages"]
    assert change in first["content"]
    return body | {"messages": [first | {"content": first["content"].replace(change, to)}, *rest]}
