"""Random conversations as clients have them: turns, tool loops, edits of what was said, branches, retries, twins."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

from cachefleet_local.models.words import WORDS
from e2e.engine.templates import TEMPLATES, Template

ODD: Final = ("<|im_end|>", "</think>", "naïve 漢字 👩‍👩‍👧", "\n\n \t ", "{{ x }}", "[INST]", '"}\\', "<tool_call>")
"""Text that a template or a tokenizer might mistake for its own."""
MOST_MESSAGES: Final = 24

Message = dict[str, Any]
Body = dict[str, Any]


class Talk:
    """One conversation: ``step`` gives the bodies of the next turn, two where two clients ask at once."""

    def __init__(self, number: int) -> None:
        self._chance = random.Random(number)
        self.template: Template = TEMPLATES[number % len(TEMPLATES)]
        self.name = f"talk-{number}"
        self.steps = self._chance.randint(4, 8)
        self._options: Body = {}
        self._messages: list[Message] = []
        if self._likely(0.6):
            self._messages.append({"role": "system", "content": self._text(10, 150)})
        if self.template.tools and self._likely(0.7):
            self._options["tools"] = [self._tool() for _ in range(self._chance.randint(1, 3))]
        self._messages.append(self._user())

    def step(self, said: str) -> list[Body]:
        """The next turn, after the answer of the one before; "" before the first."""
        if not said:
            return [self._body()]
        if len(self._messages) > MOST_MESSAGES:
            self._cut()
            return [self._body()]
        moves: list[tuple[Callable[[str], list[Body]], float]] = [
            (self._follow, 6),
            (self._twins, 1),
            (self._retry, 1),
            (self._edit, 1),
            (self._branch, 1),
            (self._instruct, 1),
            (self._reshape, 0.5),
        ]
        (move,) = self._chance.choices([move for move, _ in moves], [weight for _, weight in moves])
        return move(said)

    def _follow(self, said: str) -> list[Body]:
        self._messages += self._answered(said)
        return [self._body()]

    def _twins(self, said: str) -> list[Body]:
        """Two turns on one head; the second is the one that goes on."""
        before, bodies = list(self._messages), []
        for _ in range(2):
            self._messages = before + self._answered(said)
            bodies.append(self._body())
        return bodies

    def _retry(self, _said: str) -> list[Body]:
        return [self._body()]

    def _edit(self, said: str) -> list[Body]:
        """Something that was said is now otherwise."""
        place = self._chance.randrange(len(self._messages))
        self._messages[place] = self._messages[place] | {"content": self._text(1, 60)}
        return self._follow(said)

    def _branch(self, _said: str) -> list[Body]:
        self._cut()
        return [self._body()]

    def _instruct(self, said: str) -> list[Body]:
        """A system message in the middle."""
        answer = self._answered(said)
        self._messages += [*answer[:-1], {"role": "system", "content": self._text(3, 30)}, answer[-1]]
        if answer[-1]["role"] == "tool":
            self._messages.pop(-2)  # results follow their calls
        return [self._body()]

    def _reshape(self, said: str) -> list[Body]:
        """Other tools, or another member that shapes the prompt."""
        if self._options.get("tools") and self._likely(0.5):
            self._options["tools"] = [*self._options["tools"], self._tool()][-3:]
        elif self.template.reasoning:
            self._options["chat_template_kwargs"] = {"enable_thinking": self._likely(0.5)}
        return self._follow(said)

    def _cut(self) -> None:
        """Back to an earlier question, which is asked anew."""
        places = [place for place, message in enumerate(self._messages) if message["role"] == "user"]
        self._messages = [*self._messages[: self._chance.choice(places)], self._user()]

    def _answered(self, said: str) -> list[Message]:
        """The answer as the client sends it back, and what comes after: a question, or results of tools."""
        content = said if self._likely(0.8) else self._text(3, 40)
        message: Message = {"role": "assistant", "content": content}
        if self.template.reasoning and self._likely(0.5):
            thought = self._text(5, 40)
            said_before = {"content": f"<think>{thought}</think>{content}"}
            message |= {"reasoning": thought} if self._likely(0.5) else said_before
        if not (self._options.get("tools") and self._likely(0.5)):
            return [message, self._user()]
        names = [f"call-{self._chance.randrange(10**9)}" for _ in range(self._chance.randint(1, 2))]
        calls = [self._call(name) for name in names]
        results = [{"role": "tool", "tool_call_id": name, "content": self._text(3, 60)} for name in names]
        return [message | {"tool_calls": calls}, *results]

    def _call(self, name: str) -> Message:
        function = {"name": "look", "arguments": json.dumps({"place": self._text(1, 5)})}
        return {"id": name, "type": "function", "function": function}

    def _tool(self) -> Message:
        parameters = {"type": "object", "properties": {"place": {"type": "string", "description": self._text(2, 10)}}}
        return {"type": "function", "function": {"name": "look", "parameters": parameters}}

    def _user(self) -> Message:
        return {"role": "user", "content": self._text(3, 80)}

    def _text(self, least: int, most: int) -> str:
        words = self._chance.choices(WORDS, k=self._chance.randint(least, most))
        if self._likely(0.2):
            words.insert(self._chance.randrange(len(words) + 1), self._chance.choice(ODD))
        return " ".join(words)

    def _likely(self, share: float) -> bool:
        return self._chance.random() < share

    def _body(self) -> Body:
        return deepcopy(
            {
                "model": "tiny",
                "messages": self._messages,
                "chat_template": self.template.text,
                "max_tokens": self._chance.randint(1, 6),
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": self._likely(0.5),
                "stream": self._likely(0.5),
                **self._options,
            }
        )
