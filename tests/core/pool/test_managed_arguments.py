"""Which arguments of an engine set what follows from the pool."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.pool.managed_arguments import (
    MANAGED_ARGUMENTS,
    MANAGED_VARIABLES,
    SHORT_ARGUMENTS,
    managed_arguments,
)

LONG = st.sampled_from(sorted(MANAGED_ARGUMENTS))
TAILS = st.sampled_from(["", "=9", ".key=9", ".key+=9", "=a.b", " 9"])


def options(*words: str) -> list[str]:
    return [found.option for found in managed_arguments(words)]


@pytest.mark.parametrize(
    ("word", "option"),
    [
        ("--kv-events-config.enable_kv_cache_events=false", "kv-events-config"),
        ("--kv_events_config.enable_kv_cache_events", "kv-events-config"),
        ("--kv-ev.publisher=null", "kv-events-config"),
        ("--por=9", "port"),
        ("--api-ke=x", "api-key"),
        ("-tp", "tensor-parallel-size"),
        ("-tp=2", "tensor-parallel-size"),
        ("-t", "tensor-parallel-size"),
        ("-dpl", "data-parallel-size-local"),
        ("--max-model-le=9", "max-model-len"),
        ("--data-parallel-size=2", "data-parallel-size"),
        ("--scheduler-cls", "scheduler-cls"),
        ("--config", "config"),
        ("--conf=x.yaml", "config"),
        ("--ssl-keyf", "ssl-keyfile"),
        ("--shutdown_timeout=0", "shutdown-timeout"),
        ("--no-enable-prefix-caching", "enable-prefix-caching"),
        ("--no_enable_prefix_c", "enable-prefix-caching"),
        ("--no-enable-prompt-tokens-details", "enable-prompt-tokens-details"),
        ("--port 9", "port"),
        ("-O--kv-events-config.enable_kv_cache_events=false", "kv-events-config"),
        ("-O=--port", "port"),
        ("--", ""),
        ("--.x=1", ""),
    ],
)
def test_spellings_of_a_managed_argument(word: str, option: str) -> None:
    assert options("--max-num-seqs", word, "8") == [option]


@pytest.mark.parametrize(
    "word",
    [
        *(
            "--model-impl=auto",
            "--models",
            "--enable-lora",
            "--max-loras=8",
            "sql=/x",
            "x --model",
            "port",
            "-",
            "-0.5",
        ),
        *("-O3", "-O", "-cc.level=3", "-pp", "-q", "--hf-overrides.model=x", "--chat-template=--port", "--portable"),
        *("--kv-offloading-size=8", "--kv-cache-dtype", "--tokenizer", "--enable-log-requests", "--no-enforce-eager"),
        *("--config-format", "--data-parallel-backend", "---port", "--Port=9", "--ssl-ciphers"),
    ],
)
def test_arguments_that_a_pool_may_have(word: str) -> None:
    assert options(word) == []


@given(LONG, st.booleans(), st.integers(min_value=1), TAILS, st.randoms(use_true_random=False))
def test_every_beginning_of_a_managed_option_is_found(name: str, no: bool, cut: int, tail: str, chance: object) -> None:  # noqa: FBT001 - drawn
    full = f"no-{name}" if no else name
    begun = full[: 1 + cut % len(full)]
    word = "--" + "".join("_" if char == "-" and chance.random() < 0.5 else char for char in begun) + tail  # type: ignore[attr-defined]

    [found] = managed_arguments([word])

    assert found.written == word[: len(begun) + 2], "without the value, which may be a credential"
    assert any(each.startswith(begun) for each in (found.option, f"no-{found.option}"))
    assert found.whole == bool({begun, begun.removeprefix("no-")} & MANAGED_ARGUMENTS.keys()), "may be another's name"


@pytest.mark.parametrize(("short", "option"), SHORT_ARGUMENTS.items())
def test_short_options_are_told_by_their_long_name(short: str, option: str) -> None:
    assert options(f"-{short}") == options(f"-{short}=2") == options(f"-{short}.a=2") == [option]


def test_what_is_found_is_told_in_words() -> None:
    told = [str(found) for found in managed_arguments(["--api-ke=secret", "-tp", "--block_size=9", "--"])]

    assert told == [
        "--api-ke, which vLLM may read as --api-key: the keys of workers are made for them",
        "-tp: set spec.engine.tensorParallelSize",
        "--block_size: set spec.engine.blockSize",
        "--: leave it out, vLLM would read no option after it",
    ]


def test_the_page_on_workers_has_each_with_what_to_do_instead() -> None:
    rows = [row for row in (Path(__file__).parents[3] / "docs" / "worker.md").read_text().splitlines() if "`" in row]
    told = {f"--{name}": instead for name, instead in MANAGED_ARGUMENTS.items()} | MANAGED_VARIABLES
    short = {f"-{name}": MANAGED_ARGUMENTS[option] for name, option in SHORT_ARGUMENTS.items()}

    for name, instead in (told | short).items():
        assert [row for row in rows if f"`{name}`" in row and row.endswith(f"| {instead} |")], name
