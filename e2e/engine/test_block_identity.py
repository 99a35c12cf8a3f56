"""A whole fleet over a real vLLM that sees images and has adapters: what is predicted is what the engine serves."""

from __future__ import annotations

import base64
import io
import json
import random
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import pytest
import yaml
from PIL import Image

from cachefleet_core.tenancy import FleetKey
from e2e.engine.fleet import READY_SECONDS, Up, running_up, until
from e2e.engine.seeing_model import make_adapter, make_model

POOL: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {name: seeing}
spec:
  model:
    name: seeing
    source: MODEL
    weightsMiB: 4
    kvBytesPerToken: 512
    adapters: [{name: sql, source: FIRST}]
  engine:
    maxModelLen: 1900
    dtype: float32
    extraArgs: ["--load-format=dummy", "--max-lora-rank=8"]
    env: [{name: VLLM_ALLOW_RUNTIME_LORA_UPDATING, value: "1"}]
  device: {resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: 504}
  prefixCache: {budgetMiB: 2}
"""
BLOCK: Final = 32
COLOURS: Final = ("red", "blue", "green")
TURNS: Final = 40
REPORT_SECONDS: Final = 60.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("seeing")
    model, first = make_model(folder / "model"), make_adapter(folder / "first", seed=1)
    make_adapter(folder / "second", seed=2)
    pool = folder / "pool.yaml"
    pool.write_text(POOL.replace("MODEL", str(model)).replace("FIRST", str(first)))
    with running_up(pool, folder) as up:
        until(lambda: up.live(1), READY_SECONDS, "live", up)
        yield up


@cache
def image(colour: str) -> dict[str, Any]:
    data = io.BytesIO()
    Image.new("RGB", (48, 40), colour).save(data, "PNG")
    encoded = base64.b64encode(data.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}


def text(words: int) -> dict[str, Any]:
    return {"type": "text", "text": "What is to be seen here? " * words}


def chat(*parts: dict[str, Any], model: str = "seeing") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": list(parts)}], "max_tokens": 2, "temperature": 0}


def post(fleet: Up, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(fleet.gateway + path, json.dumps(body).encode(), headers)  # noqa: S310 - ours
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - ours
            return dict(json.load(answer)), {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from None


def predicted(fleet: Up, body: dict[str, Any]) -> int:
    """By a dry run."""
    return int(post(fleet, "/v1/route", body)[0]["predicted_tokens"])


def asked(fleet: Up, body: dict[str, Any]) -> int:
    """Have it answered: what was predicted is what was served, and all of it is held then. The tokens."""
    answer, headers = post(fleet, "/v1/chat/completions", body)
    served = answer["usage"]["prompt_tokens_details"]["cached_tokens"] or 0
    assert headers["x-cachefleet-knowledge"] == "exact"
    record = fleet.decision(headers["x-cachefleet-decision"])
    assert (record["predictedTokens"], record["cachedTokens"]) == (served, served)
    whole = (answer["usage"]["prompt_tokens"] - 1) // BLOCK * BLOCK
    until(lambda: predicted(fleet, body) == whole, REPORT_SECONDS, "reported", fleet)
    return int(served)


def test_prompts_with_images_are_predicted_to_the_token(fleet: Up) -> None:
    chance = random.Random(19)
    hits = 0
    for _ in range(TURNS):
        parts = [text(chance.randrange(1, 12)), image(chance.choice(COLOURS)), text(chance.randrange(1, 12))]
        chance.shuffle(parts)
        hits += asked(fleet, chat(*parts, *([image(chance.choice(COLOURS))] if chance.random() < 0.5 else [])))
    assert hits > TURNS * BLOCK


def test_another_image_at_the_same_place_shares_what_is_before_it_alone(fleet: Up) -> None:
    before = text(30)
    asked(fleet, chat(before, image("red"), text(9)))
    shared = asked(fleet, chat(before, image("blue"), text(9)))
    assert 0 < shared < asked(fleet, chat(before, image("red"), text(9)))


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_images_of_other_apis_are_predicted_as_well(fleet: Up, path: str) -> None:
    before, colours = f"Here are pictures, sent to {path}. " * 12, ("red", "red", "blue")
    found = [record(fleet, path, other(path, before, colour)) for colour in colours]
    assert [one["knowledge"] for one in found] == ["exact"] * 3
    assert [one["predictedTokens"] == one["cachedTokens"] for one in found] == [True] * 3
    first, again, another = [one["cachedTokens"] for one in found]
    assert first < another < again


def other(path: str, before: str, colour: str) -> dict[str, Any]:
    """A conversation with an image, as an API has it."""
    address = image(colour)["image_url"]["url"]
    if path == "/v1/responses":
        words = {"type": "input_text", "text": before}
        parts = [words, {"type": "input_image", "image_url": address}, words]
        return {"model": "seeing", "input": [{"role": "user", "content": parts}], "max_output_tokens": 2}
    source = {"type": "base64", "media_type": "image/png", "data": address.partition(",")[2]}
    words = {"type": "text", "text": before}
    parts = [words, {"type": "image", "source": source}, words]
    return {"model": "seeing", "messages": [{"role": "user", "content": parts}], "max_tokens": 2}


def record(fleet: Up, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The decision's record of a request that was answered, once its blocks are reported."""
    _, headers = post(fleet, path, body)
    found = fleet.decision(headers["x-cachefleet-decision"])
    whole = (found["promptTokens"] - 1) // BLOCK * BLOCK
    until(lambda: predicted(fleet, body | {"endpoint": path}) == whole, REPORT_SECONDS, "reported", fleet)
    return found


def test_an_adapter_that_is_loaded_from_elsewhere_matches_nothing_of_before(fleet: Up) -> None:
    question = {"type": "text", "text": "Say it in SQL, and then in words. " * 30}
    body, seen = chat(question, model="sql"), chat(question, image("red"), model="sql")
    assert asked(fleet, chat(question)) == 0
    assert asked(fleet, body) == 0
    assert asked(fleet, seen) > 0
    declared(fleet, sql="second")
    assert predicted(fleet, body) == predicted(fleet, seen) == 0
    assert asked(fleet, body) == 0
    declared(fleet, sql="first")
    assert asked(fleet, body) > 0


def test_adapters_come_and_go_with_the_pools_list_while_the_engine_runs(fleet: Up) -> None:
    (before,) = fleet.workers()
    declared(fleet, sql="first", french="second")
    body = chat({"type": "text", "text": "Say it in French. " * 40}, model="french")
    assert asked(fleet, body) == 0
    assert asked(fleet, body) > 0
    until(lambda: adapters(fleet)["slots"] == 4, REPORT_SECONDS, "told of its slots", fleet)
    missing = fleet.folder / "missing"
    declare(fleet, sql="first", legal="missing")
    until(lambda: adapters(fleet)["problems"], REPORT_SECONDS, "told as missing", fleet)
    assert adapters(fleet)["served"] == ["sql"]
    assert [(one["name"], str(missing) in one["detail"]) for one in adapters(fleet)["problems"]] == [("legal", True)]
    assert {"AdapterNotLoaded"} == {one["reason"] for one in fleet.admin("findings") if "adapter" in one["message"]}
    with pytest.raises(AssertionError, match="/v1/chat/completions: 503"):
        post(fleet, "/v1/chat/completions", chat(text(1), model="legal"))
    (after,) = fleet.workers()
    assert after["epoch"] == before["epoch"]
    assert after["configuration"] == []


def adapters(fleet: Up) -> dict[str, Any]:
    (worker,) = fleet.workers()
    return dict(worker["adapters"])


def declare(fleet: Up, **folders: str) -> None:
    """Have the pool declare these adapters, by name and folder."""
    file = fleet.data_dir / "pools.yaml"
    (pool,) = yaml.safe_load_all(file.read_text())
    named = [{"name": name, "source": str(fleet.folder / folder)} for name, folder in folders.items()]
    pool["spec"]["model"]["adapters"] = named
    new = file.with_suffix(".new")
    new.write_text(yaml.safe_dump(pool))
    new.replace(file)


def declared(fleet: Up, **folders: str) -> None:
    """As ``declare``; and wait until the engine has them, and says so."""
    declare(fleet, **folders)
    wanted = {name: str(fleet.folder / folder) for name, folder in folders.items()}
    until(lambda: loaded(fleet) == wanted, REPORT_SECONDS, "loaded", fleet)
    until(lambda: set(adapters(fleet)["served"]) == set(wanted), REPORT_SECONDS, "told", fleet)


def loaded(fleet: Up) -> dict[str, str]:
    """The engine's adapters, and where it has them from."""
    key = FleetKey.parse((fleet.data_dir / "secrets" / "fleet.key").read_text()).worker_key("default/seeing")
    (worker,) = fleet.workers()
    request = urllib.request.Request(f"{worker['url']}/v1/models", headers={"Authorization": f"Bearer {key}"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - ours
        return {one["id"]: one["root"] for one in json.load(answer)["data"] if one["parent"]}
