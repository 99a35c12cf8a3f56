"""The finish reason in vLLM's own enums, encoder and output processor."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from cachefleet_local.models.tiny_model import tiny_model_path
from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.gate import finish_reason
from cachefleet_worker.plugin.gate.rules import FIELD
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.plugin_process import this_process
from cachefleet_worker.plugin.settings import PluginSettings
from tests.worker.plugin.stepping import ids, stepped

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def _vllm() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module("vllm.v1.engine.output_processor")
        import_module("vllm.v1.metrics.loggers")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """The patches belong to the process, and so to the tests after these."""
    parts = dict(this_process().parts)
    yield
    finish_reason.add_reason()
    this_process().parts.clear()
    this_process().parts.update(parts)


def installed(off: str = "") -> tuple[finish_reason.Finish, Capabilities, Faults]:
    capabilities = Capabilities()
    faults = Faults(capabilities)
    settings = PluginSettings.from_environment({"CACHEFLEET_PLUGIN_OFF": off})
    return finish_reason.install(capabilities, faults, settings), capabilities, faults


def test_a_member_of_vllms_enum_that_comes_through_its_encoder() -> None:
    found, capabilities, _ = installed()
    assert (str(found.reason), found.streams) == ("cache_threshold", True)
    assert (capabilities.mode("finish_reason"), capabilities.mode("streaming")) == ("enum", "patched")
    engine = import_module("vllm.v1.engine")
    assert engine.FinishReason(found.reason.value) is engine.FinishReason.CACHE_THRESHOLD is found.reason
    assert list(engine.FinishReason)[-1] is found.reason
    request = import_module("vllm.v1.request").RequestStatus
    assert request.is_finished(found.status)
    assert request.get_finished_reason(found.status) is found.reason


def test_installing_again_changes_nothing() -> None:
    first = installed()[0]
    engine = import_module("vllm.v1.engine")
    before = list(engine.FinishReason), engine.FINISH_REASON_STRINGS
    second = installed()[0]
    assert (second.reason, second.status) == (first.reason, first.status)
    assert (list(engine.FinishReason), engine.FINISH_REASON_STRINGS) == before


def test_where_it_does_not_come_through_the_enum_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    finish_reason.remove_reason()
    engine = import_module("vllm.v1.engine")
    stock = list(engine.FinishReason), engine.FINISH_REASON_STRINGS

    def lost(_: Any) -> None:
        raise ValueError("lost")

    monkeypatch.setattr(finish_reason, "check_round_trip", lost)
    found, capabilities, faults = installed()
    assert (list(engine.FinishReason), engine.FINISH_REASON_STRINGS) == stock
    assert not hasattr(engine.FinishReason, finish_reason.MEMBER)
    assert (str(found.reason), found.streams) == ("stop", True)
    assert capabilities.mode("finish_reason") == "stop_reason"
    assert faults.counts == {"finish_reason": 1}


def test_a_reason_that_the_decoder_does_not_know_is_found() -> None:
    installed()
    with pytest.raises(Exception, match="Invalid enum value 99"):
        finish_reason.check_round_trip(99)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_refusal_as_an_ordinary_stop_says_why(*, asynchronous: bool) -> None:
    this_process().parts["finish"] = installed("finish_reason")[0]
    engine = stepped(asynchronous=asynchronous)
    name = engine.submit(ids(1, 100), extra_args={FIELD: 0.5})
    engine.run()
    assert (engine.answers[name].reason, engine.answers[name].stop_reason) == ("stop", "cache_threshold")
    engine.check_idle()


def test_a_stream_that_could_not_say_so_is_not_refused() -> None:
    this_process().parts["finish"] = installed("streaming")[0]
    engine = stepped()
    name = engine.submit(ids(1, 100), extra_args={FIELD: 0.5})
    engine.run()
    assert engine.answers[name].reason == "length"


def test_the_stream_test_finds_a_missing_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    state = import_module("vllm.v1.engine.output_processor").RequestState
    found = installed()[0]
    monkeypatch.setattr(state, "_new_completion_output", state._new_completion_output.__wrapped__)
    with pytest.raises(ValueError, match="a refused stream's chunk is"):
        finish_reason.check_stream(found.reason)


# vLLM's output processor


class Client:
    """What comes of the tokens of one streamed request."""

    def __init__(self, *, stop: str = "", interval: int = 1) -> None:
        tokenizer = import_module("transformers").AutoTokenizer.from_pretrained(tiny_model_path())
        sampling = import_module("vllm.sampling_params")
        self.engine = import_module("vllm.v1.engine")
        processor = import_module("vllm.v1.engine.output_processor").OutputProcessor
        self.tokenizer = tokenizer
        self.processor = processor(tokenizer, log_stats=False, stream_interval=interval)
        parameters = sampling.SamplingParams(
            stop=stop or None, logprobs=None, output_kind=sampling.RequestOutputKind.DELTA
        )
        request = self.engine.EngineCoreRequest(
            request_id="r",
            external_req_id="r",
            prompt_token_ids=tokenizer.encode("hello"),
            mm_features=None,
            sampling_params=parameters,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        self.processor.add_request(request, "hello")
        self.texts: list[str] = []
        self.tokens: list[int] = []
        self.last: Any = None

    def feed(self, tokens: list[int], reason: Any = None) -> None:
        output = self.engine.EngineCoreOutput(
            request_id="r",
            new_token_ids=tokens,
            finish_reason=reason,
            stop_reason=finish_reason.REASON if reason is not None else None,
        )
        for made in self.processor.process_outputs([output]).request_outputs:
            self.last = made.outputs[0]
            self.texts.append(self.last.text)
            self.tokens += list(self.last.token_ids)


def test_text_kept_back_for_a_stop_string_comes_with_the_last_chunk() -> None:
    reason = installed()[0].reason
    client = Client(stop="none of this appears")
    tokens = client.tokenizer.encode(" the quick brown fox")
    for token in tokens:
        client.feed([token])
    before = "".join(client.texts)
    client.feed([], reason)
    assert before != client.tokenizer.decode(tokens)
    assert "".join(client.texts) == client.tokenizer.decode(tokens)
    assert client.tokens == tokens
    assert (client.last.finish_reason, client.last.stop_reason) == ("cache_threshold", "cache_threshold")


def test_of_half_a_character_the_ids_come_and_the_text_does_not() -> None:
    """What goes on elsewhere from the ids says the whole character then; a replacement mark here would stay wrong."""
    reason = installed()[0].reason
    client = Client()
    tokens = client.tokenizer.encode("ab 😀")[:-1]
    assert client.tokenizer.decode(tokens).endswith("�")
    for token in tokens:
        client.feed([token])
    client.feed([], reason)
    assert client.tokens == tokens
    assert "".join(client.texts) == client.tokenizer.decode(tokens).rstrip("�")


def test_tokens_kept_back_for_an_interval_come_with_the_last_chunk() -> None:
    reason = installed()[0].reason
    client = Client(interval=10)
    tokens = client.tokenizer.encode("the quick brown fox jumps over")
    for token in tokens:
        client.feed([token])
    assert client.tokens != tokens
    client.feed([], reason)
    assert client.tokens == tokens
    assert "".join(client.texts) == client.tokenizer.decode(tokens)


@pytest.mark.requirement("B7")
def test_a_refused_request_has_one_chunk_that_counts_no_token() -> None:
    reason = installed()[0].reason
    client = Client()
    client.feed([], reason)
    assert client.texts == [""]
    assert bool(client.last.token_ids)
    assert list(client.last.token_ids) == []
    assert client.last.finish_reason == "cache_threshold"
