"""What ``/v1/models`` tells of the fleet behind a name."""

from typing import Any

import pytest
from msgspec.structs import replace
from yarl import URL

from cachefleet_controlplane.gateway.model_cards import card, endpoints
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.index_contract import Difference
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.status import PoolStatus
from cachefleet_core.report_frames import Capability, Hello
from tests.controlplane.gateway.apis.client_setup import clients
from tests.controlplane.gateway.harness import CONTRACT, MODEL, POOL, engine, front, pool

GENERATING = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
POOLED = ["/v1/embeddings", "/v1/rerank", "/v1/score", "/classify", "/pooling"]
TOKENIZING = ["/tokenize", "/detokenize"]


def hello(name: str = "a", *, longest: int = 0, **modes: str) -> Hello:
    capabilities = tuple(Capability(feature=feature, mode=mode) for feature, mode in modes.items())
    return Hello(
        worker=name,
        pool=POOL,
        epoch="e",
        endpoint="http://127.0.0.1:1",
        contract=CONTRACT,
        capabilities=capabilities,
        max_model_len=longest,
    )


def model(declared: PrefixCachePool) -> ServedModel:
    return ServedModel(
        base=MODEL,
        name=MODEL,
        upstream=MODEL,
        namespace="default",
        pools=(POOL,),
        declared=(declared,),
        max_model_len=4096,
        created=7,
    )


def told(*announced: Hello) -> dict[str, Any]:
    made: Any = card(model(pool()), announced)
    return dict(made["capabilities"])


def with_arguments(*arguments: str) -> PrefixCachePool:
    declared = pool()
    spec = declared.spec.model_copy(
        update={"engine": declared.spec.engine.model_copy(update={"extra_args": list(arguments)})}
    )
    return declared.model_copy(update={"spec": spec})


def test_a_capability_is_one_that_every_worker_has() -> None:
    on, off = hello("a", gate="in_loop", preemption="in_loop"), hello("b", gate="off", preemption="in_loop")
    assert told(on) == {
        "endpoints": GENERATING + TOKENIZING,
        "prefix_caching": True,
        "cache_hit_threshold": True,
        "hand_back": True,
        "workers": 1,
    }
    both = told(on, off)
    assert (both["cache_hit_threshold"], both["hand_back"], both["workers"]) == (False, True, 2)
    nobody = told()
    assert (nobody["cache_hit_threshold"], nobody["hand_back"], nobody["workers"]) == (False, False, 0)


def test_a_model_to_which_an_engine_gives_no_prefix_cache_has_none() -> None:
    uncached = replace(hello("b"), configuration=(Difference("enable_prefix_caching", "true", "false"),))
    assert told(hello())["prefix_caching"] is True
    assert told(hello(), uncached)["prefix_caching"] is False


def test_the_longest_prompt_is_what_the_workers_say_before_what_is_declared() -> None:
    assert card(model(pool()), [hello(longest=2048), hello("b", longest=1024)])["max_model_len"] == 2048
    assert card(model(pool()), [hello()])["max_model_len"] == 4096


@pytest.mark.parametrize("arguments", [("--runner", "pooling"), ("--runner=pooling",)])
def test_a_pooling_runner_generates_nothing(arguments: tuple[str, ...]) -> None:
    assert endpoints([with_arguments(*arguments)]) == [*POOLED, *TOKENIZING]
    assert endpoints([with_arguments(*arguments), pool()]) == [*GENERATING, *POOLED, *TOKENIZING]


def test_other_arguments_mean_nothing() -> None:
    assert endpoints([with_arguments("--seed", "pooling", "--runner")]) == GENERATING + TOKENIZING


def test_endpoints_are_those_that_every_engine_has() -> None:
    """Where one does not tell, those that are declared."""
    one, other = hello("a"), hello("b")
    served = ("/classify", "/tokenize", "/v1/chat/completions", "/v1/embeddings", "/v1/load_lora_adapter")
    one, other = replace(one, endpoints=served), replace(other, endpoints=served[1:])
    assert endpoints([pool()], [one, other]) == ["/v1/chat/completions", "/v1/embeddings", "/tokenize"]
    assert endpoints([pool()], [one, hello("b")]) == endpoints([pool()])


async def test_every_name_that_is_listed_can_be_asked_for_and_no_namespace_takes_anothers() -> None:
    async with engine() as worker, front([worker]) as gate:
        owner = pool().model_copy(update={"status": PoolStatus(first_ready_time="2027-01-01T00:00:00Z")})
        taker = owner.model_copy(
            update={"metadata": owner.metadata.model_copy(update={"namespace": "another"}), "status": None}
        )
        gate.fleet.update_pools([PoolView(taker, ()), PoolView(owner, gate.endpoints())])
        async with gate.http.get(f"{gate.url}/v1/models") as answer:
            listed = [model["id"] for model in (await answer.json())["data"]]
        assert listed == [f"another/{MODEL}", MODEL]
        assert [(await gate.chat("x", model=name))[0] for name in listed] == [503, 200]


async def test_cards_are_those_of_workers_that_are_ready() -> None:
    async with engine() as worker, front([worker]) as gate:
        async with gate.http.get(f"{gate.url}/v1/models/{MODEL}") as answer:
            assert (await answer.json())["capabilities"]["workers"] == 0
        gate.report(0)
        async with gate.http.get(f"{gate.url}/v1/models") as answer:
            (listed,) = (await answer.json())["data"]
        assert listed["capabilities"]["workers"] == 1
        async with gate.http.get(f"{gate.url}/v1/models/default/{MODEL}") as answer:
            assert (await answer.json())["id"] == f"default/{MODEL}"


VERSION = {"anthropic-version": "2023-06-01"}


async def test_codex_finds_the_member_that_it_reads_and_nothing_that_it_cannot() -> None:
    async with front([]) as gate:
        async with gate.http.get(f"{gate.url}/v1/models?client_version=0.153.4") as answer:
            told = await answer.json()
        async with gate.http.get(f"{gate.url}/v1/models") as answer:
            plain = await answer.json()
    assert told == plain | {"models": []}
    assert [(one["id"], one["context_window"], one["max_output_tokens"]) for one in plain["data"]] == [
        (MODEL, 4096, 4096)
    ]


async def test_anthropics_clients_get_their_own_listing() -> None:
    async with engine() as worker, front([worker]) as gate:
        gate.report(0, said={"max_model_len": 2048})
        async with clients(gate.url, model=MODEL).anthropic as anthropic:
            page = await anthropic.models.list()
            one = await anthropic.models.retrieve(MODEL)
        async with gate.http.get(f"{gate.url}/v1/models", headers=VERSION) as answer:
            told = await answer.json()
        async with gate.http.get(f"{gate.url}/v1/models/none", headers=VERSION) as answer:
            assert (answer.status, (await answer.json())["type"], "request-id" in answer.headers) == (
                404,
                "error",
                True,
            )
    assert (told["has_more"], told["first_id"], told["last_id"]) == (False, MODEL, MODEL)
    assert [(card["type"], card["id"], card["created_at"][-1]) for card in told["data"]] == [("model", MODEL, "Z")]
    assert page.data == [one]
    assert (one.id, one.display_name, one.max_input_tokens, one.lifecycle) == (MODEL, MODEL, 2048, "active")
    assert one.created_at.tzinfo is not None


async def test_anthropics_listing_of_nothing() -> None:
    async with front([]) as gate:
        gate.fleet.update_pools([])
        async with gate.http.get(f"{gate.url}/v1/models", headers=VERSION) as answer:
            assert await answer.json() == {"data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.parametrize("headers", [{}, VERSION])
@pytest.mark.parametrize("written", ["Qwen%2FQwen3-8B", "Qwen/Qwen3-8B"])
async def test_a_name_may_have_a_slash(written: str, headers: dict[str, str]) -> None:
    async with front([], model="Qwen/Qwen3-8B") as gate:
        url = URL(f"{gate.url}/v1/models/{written}", encoded=True)
        async with gate.http.get(url, headers=headers) as answer:
            assert (answer.status, (await answer.json())["id"]) == (200, "Qwen/Qwen3-8B")
