"""A logits processor by which a tiny model says what a test wants: calls of tools, thoughts, answers.

As any model's, its next token depends on the tokens before it alone: it goes on with the script where the prompt and
what was produced end with the script's beginning. So an answer goes on the same way on another engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

OPTION: Final = "--logits-processors=e2e.engine.scripted_answers:Scripted"
SCRIPT: Final = "script"
"""Member of ``vllm_xargs``: the token ids to say, the last of which ends the answer."""


class Scripted(AdapterLogitsProcessor):
    """vLLM's processor."""

    def is_argmax_invariant(self) -> bool:
        """The most likely token is another one."""
        return False

    @classmethod
    def validate_params(cls, _params: Any) -> None:
        """Any script will do."""

    def new_req_logits_processor(self, params: Any) -> Callable[[list[int], list[int], Any], Any] | None:
        """The processor of one request; None where it has no script."""
        script = [int(each) for each in (params.extra_args or {}).get(SCRIPT, ())]
        if not script:
            return None

        def say(prompt: list[int], produced: list[int], logits: Any) -> Any:
            said = [*prompt[-len(script) :], *produced][-len(script) :]
            at = next((end for end in range(min(len(said), len(script) - 1), 0, -1) if said[-end:] == script[:end]), 0)
            chosen = logits[script[at]].clone()
            logits[:] = float("-inf")
            logits[script[at]] = chosen
            return logits

        return say
