"""What is read out of completions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cachefleet_worker.agent.engines.prompt_run import PromptRun
from cachefleet_worker.agent.engines.vllm.answers import read_run


@pytest.mark.parametrize(
    ("answer", "logprobs"),
    [
        ({"logprobs": {"content": [{"token": "a", "logprob": -0.25}]}}, (-0.25,)),
        ({"logprobs": {"token_logprobs": [None], "tokens": ["a"]}}, (None,)),
        ({"logprobs": {"token_logprobs": [-9998.5, -9999.0, None]}}, (-9998.5, None, None)),
        ({"logprobs": None}, ()),
    ],
)
def test_an_answer_is_read(answer: dict[str, Any], logprobs: tuple[float | None, ...]) -> None:
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}
    content = {"choices": [{"index": 0, "finish_reason": "length", **answer}], "usage": usage}
    run = read_run(msgspec.json.encode(content))
    assert run == PromptRun(prompt_tokens=9, cached_tokens=8, finish_reason="length", logprobs=logprobs)
    assert not run.unfinished
    assert PromptRun(finish_reason="cache_threshold").unfinished
