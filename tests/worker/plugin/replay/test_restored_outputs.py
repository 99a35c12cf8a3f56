"""What was produced elsewhere is output: of the engine core's request, of a worker's, and taken by the grammar."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachefleet_core.engine.answer_replay import Unrecorded
from cachefleet_core.engine.executors import IN_PROCESS
from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.replay import restored_outputs
from cachefleet_worker.plugin.replay.restored_outputs import FEATURE, install, member, patch, restored
from cachefleet_worker.plugin.settings import PluginSettings

NAME = member(b"key")


@dataclass
class EngineRequest:
    """As vLLM's, in what is hooked."""

    request_id: str
    sampling_params: Any
    produced: list[int] = field(default_factory=list)
    num_preemptions: int = 0

    @classmethod
    def from_engine_core_request(cls, request: Any, _block_hasher: Any) -> EngineRequest:
        return cls(request.request_id, request.sampling_params)

    def append_output_token_ids(self, token_ids: list[int]) -> None:
        self.produced += token_ids


@dataclass
class State:
    """As a worker's request."""

    sampling_params: Any
    output_token_ids: list[int] = field(default_factory=list)
    num_prompt_tokens: int = 0

    def __post_init__(self) -> None:
        self.num_prompt_tokens = 5


class Grammar:
    """Takes tokens that grow."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def accept_tokens(self, _request_id: str, tokens: list[int]) -> bool:
        self.taken += tokens
        return sorted(tokens) == tokens


class Grammars:
    def _create_grammar(self, _request: Any) -> Grammar:
        return Grammar()


@pytest.fixture
def hooked() -> None:
    for _ in range(2):  # an earlier hook is replaced
        patch(EngineRequest, State, Grammars, NAME)


def params(**extra: Any) -> SimpleNamespace:
    return SimpleNamespace(extra_args=extra or None)


@pytest.mark.usefixtures("hooked")
class TestHooks:
    def test_the_engine_core_and_its_worker_have_it_as_output(self) -> None:
        asked = SimpleNamespace(request_id="r", sampling_params=params(**{NAME: [4, 9]}))
        request = EngineRequest.from_engine_core_request(asked, None)
        assert (request.produced, request.num_preemptions) == ([4, 9], 1)
        state = State(request.sampling_params)
        assert (state.output_token_ids, state.num_prompt_tokens) == ([4, 9], 5)
        assert State(request.sampling_params, [4, 9, 10]).output_token_ids == [4, 9, 10]
        grammar = Grammars()._create_grammar(request)
        assert grammar.taken == [4, 9]

    @pytest.mark.parametrize("extra", [{}, {"script": [1]}, {"cachefleet_": [1]}, {member(b"other"): [1]}])
    def test_any_other_request_is_as_it_was(self, extra: dict[str, Any]) -> None:
        asked = SimpleNamespace(request_id="r", sampling_params=params(**extra))
        request = EngineRequest.from_engine_core_request(asked, None)
        assert request.num_preemptions == 0
        assert (request.produced, State(params(**extra)).output_token_ids, State(None).output_token_ids) == ([], [], [])
        assert Grammars()._create_grammar(request).taken == []

    def test_a_grammar_that_does_not_take_it_fails_the_request(self) -> None:
        asked = SimpleNamespace(request_id="r", sampling_params=params(**{NAME: [9, 4]}))
        with pytest.raises(ValueError, match="does not take"):
            Grammars()._create_grammar(asked)


def config(backend: Any = "mp", *, stages: int = 1, machines: int = 1, thoughts: str = "") -> SimpleNamespace:
    parallel = SimpleNamespace(distributed_executor_backend=backend, pipeline_parallel_size=stages, nnodes=machines)
    outputs = SimpleNamespace(reasoning_parser=thoughts, enable_in_reasoning=False)
    return SimpleNamespace(parallel_config=parallel, structured_outputs_config=outputs)


@pytest.mark.parametrize(
    ("given", "on", "expected"),
    [
        (config(), True, {Unrecorded.PENALTIES, Unrecorded.GRAMMAR}),
        (config(IN_PROCESS), True, {Unrecorded.PENALTIES, Unrecorded.GRAMMAR}),
        (config(thoughts="granite"), True, {Unrecorded.PENALTIES}),
        (config("ray"), True, set()),
        (config(Grammar), True, set()),
        (config(stages=2), True, set()),
        (config(machines=2), True, set()),
        (config(), False, set()),
    ],
)
def test_what_an_engine_goes_on_with(given: Any, expected: set[Unrecorded], *, on: bool) -> None:
    assert restored(given, on=on) == expected


@pytest.mark.parametrize("off", [True, False])
def test_it_is_off_where_that_is_asked_for_or_there_is_no_key(off: bool, tmp_path: Path) -> None:  # noqa: FBT001
    key = tmp_path / "key"
    key.write_text("" if not off else "secret")
    capabilities = Capabilities()
    settings = PluginSettings(worker_key_file=key, plugin_off=frozenset({FEATURE} if off else ()))
    install(capabilities, Faults(capabilities), settings)
    assert capabilities.mode(restored_outputs.FEATURE) == "off"


def test_the_member_is_none_that_others_can_name() -> None:
    assert member(b"a") != member(b"b")
    assert len(NAME) == len("cachefleet_") + 64
