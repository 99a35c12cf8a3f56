"""What is told of a start, by vLLM's own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachefleet_local.fleet.start_progress import CAUSES, LAST_LINES, StartProgress, last_words, read_end, stage

LINES = [
    ("W1123 torch/utils/flop_counter.py:29] triton not found", "importing vLLM"),
    ("(APIServer pid=1) INFO [api_utils.py:286] non-default args: {}", "reading the model's configuration"),
    ("(EngineCore pid=2) INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with", "starting the engine core"),
    ("(EngineCore pid=2) INFO [cpu_model_runner.py:68] Starting to load model /m...", "loading weights"),
    ("Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]", "loading weights"),
    ("(EngineCore pid=2) INFO [default_loader.py:501] Loading weights took 0.17 seconds", "preparing the model"),
    ("(EngineCore pid=2) INFO [backends.py:1] Dynamo bytecode transform time: 4.03 s", "compiling"),
    ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|", "capturing CUDA graphs"),
    ("(EngineCore pid=2) INFO [kv_cache_utils.py:2327] CPU KV cache size: 12,288 tokens", "making the KV cache"),
    ("(EngineCore pid=2) INFO [core.py:402] init engine (profile, warmup model) took 0.14 s", "opening its port"),
]


def test_the_stage_is_the_furthest_that_the_log_tells() -> None:
    assert stage("") == "importing vLLM"
    text = ""
    for line, doing in LINES:
        text += line + "\n"
        assert stage(text) == doing


def test_a_cause_far_up_is_shown_with_the_last_lines() -> None:
    errors = [f"ValueError: cause {number}" for number in range(CAUSES + 1)]
    end = [f"RuntimeError: Engine core initialization failed {number}" for number in range(LAST_LINES)]
    assert last_words("\n".join([*errors, "some line", *end])) == [*errors[1:], *end]
    assert last_words("") == ["(no log)"]


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert read_end(log) == ""
    log.write_bytes(b"before\xff after")
    assert read_end(log, since=7) == " after"
    assert read_end(log).endswith("after")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": "b"}', "3"])
def test_times_that_cannot_be_read_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "times").write_text(text)
    assert StartProgress(tmp_path / "times").usual == {}
