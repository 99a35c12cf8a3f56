"""The engine's own parser reads the command line of a pool as it is meant."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_core.engine.engine_arguments import EngineAddresses, engine_arguments, engine_environment
from cachefleet_core.engine.executors import IN_PROCESS
from cachefleet_core.pool.managed_arguments import MANAGED_ARGUMENTS
from cachefleet_core.pool.spec import read_pool
from tests.core.engine.vllm_parser import read_by_vllm
from tests.core.invalid_pools import VALID, merged

pytestmark = [pytest.mark.engine, pytest.mark.timeout(180)]

PROGRAM = """
import argparse, json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.multimodal.media import ImageMediaIO, MediaConnector
from vllm.utils.argparse_utils import FlexibleArgumentParser

def fetched(domains):
    try:
        MediaConnector(allowed_media_domains=domains).load_from_url("http://127.0.0.1:1/x.png", ImageMediaIO())
    except Exception as error:
        return str(error)

parser = make_arg_parser(FlexibleArgumentParser())
known = sorted({option for action in parser._actions for option in action.option_strings})
read = [vars(parser.parse_args(arguments)) for arguments in json.loads(sys.argv[1])]
fetches = [fetched(one["allowed_media_domains"]) for one in read]
found = {"known": known, "read": read, "fetches": fetches}
print("READ", json.dumps(found, default=lambda value: getattr(value, "__dict__", str(value))))
"""

GPU: dict[str, Any] = {
    "role": "Prefill",
    "model": {"revision": "abc"},
    "engine": {
        "tensorParallelSize": 2,
        "kvTransfer": {"kv_connector": "NixlConnector"},
        "extraArgs": ["--max-num-seqs", "8"],
    },
}
CPU: dict[str, Any] = {
    "device": {"resource": "", "activationMiB": 0},
    "prefixCache": {"enabled": False},
    "engine": {"allowedMediaDomains": ["127.0.0.1", "a.example"]},
}


@pytest.fixture(scope="module")
def parsed() -> dict[str, Any]:
    lines = [
        engine_arguments(
            read_pool(merged(VALID, {"spec": patch})).spec,
            EngineAddresses("127.0.0.1", 8000, events="ipc:///run/events", replay="ipc:///run/replay"),
            model_path="/models/qwen",
        )
        for patch in (GPU, CPU)
    ]
    cpu = read_pool(merged(VALID, {"spec": CPU})).spec
    return read_by_vllm(PROGRAM, lines, engine_environment(cpu))


def test_the_engine_knows_every_option_we_keep_to_ourselves(parsed: dict[str, Any]) -> None:
    assert {f"--{name}" for name in MANAGED_ARGUMENTS} <= set(parsed["known"])


def test_media_are_fetched_from_hosts_that_the_pool_names_and_by_default_from_none(parsed: dict[str, Any]) -> None:
    assert [read["allowed_media_domains"] for read in parsed["read"]] == [["none.invalid"], ["127.0.0.1", "a.example"]]
    none, named = parsed["fetches"]
    assert "must be from one of the allowed domains: ['none.invalid']" in none
    assert "allowed domains" not in named, "it was tried"


def test_a_pool_on_gpus_is_read_as_meant(parsed: dict[str, Any]) -> None:
    read = parsed["read"][0]

    assert (read["model"], read["served_model_name"], read["revision"]) == ("/models/qwen", ["qwen3-32b"], "abc")
    assert (read["tensor_parallel_size"], read["max_model_len"], read["block_size"]) == (2, 32768, 16)
    assert read["kv_cache_memory_bytes"] == 47122 * 1024 * 1024
    assert read["enable_prefix_caching"] is None, "vLLM decides by its model"
    assert read["prefix_caching_hash_algo"] == "sha256_cbor"
    assert (read["enable_scale_out"], read["enable_prompt_tokens_details"]) == (True, True)
    assert read["kv_events_config"]["replay_endpoint"] == "ipc:///run/replay"
    assert read["kv_transfer_config"]["kv_role"] == "kv_producer"
    assert (read["max_num_seqs"], read["enforce_eager"]) == (8, False)


def test_a_pool_on_a_cpu_is_read_as_meant(parsed: dict[str, Any]) -> None:
    read = parsed["read"][1]

    assert (read["block_size"], read["enforce_eager"], read["enable_prefix_caching"]) == (32, True, False)
    assert read["kv_transfer_config"] is None
    assert read["distributed_executor_backend"] == IN_PROCESS
