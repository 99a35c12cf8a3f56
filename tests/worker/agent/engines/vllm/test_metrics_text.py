from __future__ import annotations

import pytest

from cachefleet_worker.agent.engines.engine_poll import LoadMetrics, Operations
from cachefleet_worker.agent.engines.vllm.metrics_text import CacheConfig, read_scrape
from cachefleet_worker.agent.load_meter import LoadMeter

TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m \\"x\\", y"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:num_preemptions_total{engine="0",model_name="m"} 4.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7e+09
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 600.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 400.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 600.0
vllm:request_prefill_kv_computed_tokens_sum{engine="0",model_name="m"} 390.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="m"} 0.5
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 1.5
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 100.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="discard_all"} 0.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="512"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="None"} 1.0
process_start_time_seconds 1.7e+09
vllm:num_requests_waiting{engine="0 broken
"""


def test_everything_of_interest_is_read() -> None:
    scrape = read_scrape(TEXT)
    assert scrape.caches == {0: CacheConfig(block_size=16, blocks=511)}
    assert scrape.process is not None
    assert "process_start_time_seconds=1.7e+09" in scrape.process
    assert scrape.ranks[1].running == 1
    assert scrape.ranks[0] == LoadMetrics(
        running=3,
        waiting=2,
        usage=0.25,
        preemptions=4,
        prefix_queries=1000,
        prefix_hits=600,
        prefill_tokens=390.0,
        prefill_seconds=0.5,
        inter_token_sum=1.5,
        inter_token_count=100.0,
    )


def test_the_configuration_of_the_cache_is_read_where_it_is_told() -> None:
    line = (
        'vllm:cache_config_info{block_size="16",enable_prefix_caching="False",engine="0",kv_cache_memory_bytes="None"'
    )
    told = read_scrape(
        f'{line},num_gpu_blocks="8",num_gpu_blocks_override="8",prefix_caching_hash_algo="sha256"}} 1.0\n'
    )

    assert told.caches[0] == CacheConfig(
        16, 7, prefix_caching=False, hash_algorithm="sha256", memory_bytes=0, blocks_override=8
    )


def test_sleep_is_seen() -> None:
    assert read_scrape(TEXT.replace('awake"} 1.0', 'awake"} 0.0')).ranks[0].asleep


def test_operations_of_sleep_and_weights_are_seen() -> None:
    assert read_scrape(TEXT).operations == Operations()
    told = read_scrape(
        """
vllm:sleep_mode_operation_duration_seconds_count{operation="sleep"} 2.0
vllm:sleep_mode_operation_duration_seconds_count{operation="release_kv_cache_memory"} 1.0
vllm:sleep_mode_operation_duration_seconds_count{operation="wake"} 2.0
vllm:sleep_mode_operations_in_flight{operation="sleep"} 1.0
vllm:rl_weight_update_operations_in_flight{operation="init"} 1.0
"""
    )
    assert told.operations == Operations(sleeping=True, updating=False, sleeps=3)
    assert not told.ranks
    assert read_scrape('vllm:rl_weight_update_operations_in_flight{operation="update"} 1.0\n').operations.updating


def test_an_empty_or_odd_text_says_nothing() -> None:
    for text in (
        "",
        "\0\n}{",
        'vllm:num_requests_running{engine="x"} 1\n',
        'vllm:num_requests_running{engine="0"} NaN\n',
    ):
        assert read_scrape(text).ranks == {}


def test_another_start_is_another_process() -> None:
    assert read_scrape(TEXT).process != read_scrape(TEXT.replace("seconds 1.7e+09", "seconds 1.8e+09")).process
    assert read_scrape("").process is None


OFFLOADING = """
vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 700.0
vllm:kv_offload_total_time_total{engine="0",transfer_type="CPU_to_GPU"} 0.25
vllm:kv_offload_total_time_total{engine="0",transfer_type="GPU_to_CPU"} 9.0
vllm:kv_offload_total_time_created{engine="0",transfer_type="CPU_to_GPU"} 1.7e+09
"""
"""As of OffloadingConnector in vLLM 0.28."""
NEWER = """
vllm:prompt_tokens_cached_by_source_total{engine="0",source="device"} 5000.0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="host"} 300.0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="disk"} 100.0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="p2p"} 300.0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="external_unspecified"} 50.0
vllm:kv_offload_load_time_total{engine="0"} 0.26
"""
"""What vLLM 0.32 has besides."""


@pytest.mark.parametrize(
    ("text", "tokens", "seconds"), [(OFFLOADING, 700, 0.25), (OFFLOADING + NEWER, 450, 0.26), (TEXT, 0, 0)]
)
def test_what_was_loaded_is_read_with_its_time(text: str, tokens: float, seconds: float) -> None:
    read = read_scrape(text).ranks[0]
    assert (read.loaded_tokens, read.loading_seconds) == (tokens, seconds)


BEGINNING = """
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 5000.0
vllm:request_prefill_kv_computed_tokens_sum{engine="0"} 0.0
vllm:request_prefill_time_seconds_sum{engine="0"} 0.0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="host"} 0.0
vllm:kv_offload_load_time_total{engine="0"} 0.0
vllm:kv_offload_total_time_total{engine="0",transfer_type="CPU_to_GPU"} 0.25
"""
"""Of an engine whose first request runs: one sum counts at its end, another at its beginning."""


def test_a_sum_that_is_still_0_is_not_replaced_by_another_one() -> None:
    read = read_scrape(BEGINNING).ranks[0]
    assert (read.prefill_tokens, read.loading_seconds) == (0.0, 0.0)
    meter = LoadMeter(200, 1)
    for done in range(5):
        text = BEGINNING.replace('tokens_sum{engine="0"} 0.0', f'tokens_sum{{engine="0"}} {4000.0 * done}')
        text = text.replace('seconds_sum{engine="0"} 0.0', f'seconds_sum{{engine="0"}} {2.0 * done}')
        load = meter.add(read_scrape(text).ranks[0])
    assert load.prefill_tokens_per_second == pytest.approx(2000.0)


def test_the_hosts_room_is_read_where_the_engine_tells_it() -> None:
    """From 0.33 on, in chunks of several blocks; a manager may have several series, of which some say nothing of it."""
    line = 'vllm:kv_offload_config_info{cpu_blocks_per_chunk="%s",cpu_num_chunks="%s",engine="0",manager="%s"} 1.0\n'
    assert read_scrape(TEXT).ranks[0].host_blocks is None
    assert read_scrape(TEXT + line % ("4", "100", "a")).ranks[0].host_blocks == 400
    assert read_scrape(TEXT + line % ("4", "100", "a") + line % ("1", "30", "b")).ranks[0].host_blocks == 430
    assert read_scrape(TEXT + line % ("", "", "disk")).ranks[0].host_blocks is None
    assert read_scrape(TEXT + line % ("", "", "disk") + line % ("2", "8", "a")).ranks[0].host_blocks == 16
    assert read_scrape(TEXT + line % ("4", "100", "a")).ranks[1].host_blocks is None
