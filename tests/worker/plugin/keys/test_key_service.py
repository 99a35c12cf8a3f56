"""Block keys of bodies, over a made-up renderer; vLLM's own is in e2e/engine/test_plugin_keys.py."""

from __future__ import annotations

import base64
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cachefleet_core import prompt_keys
from cachefleet_core.block_identity.media import MediaKeyer, Placed
from cachefleet_core.block_keys import BlockKeyer, Namespace, pack_keys, pack_tokens, unpack_keys
from cachefleet_core.engine.held_requests import Hold
from cachefleet_core.native import PYTHON, Code, native_code
from cachefleet_worker.plugin.asgi import HttpError
from cachefleet_worker.plugin.keys import key_service
from cachefleet_worker.plugin.keys.key_service import KeyService
from cachefleet_worker.plugin.keys.render import BodyKind, NoRenderingError, Prompt, RefusedError, Rendered
from cachefleet_worker.plugin.settings import PluginSettings
from tests.core.codes import CODES, over_both
from tests.worker.plugin.asked import process

INDEX_KEY = bytes(range(32))
CONTRACT = "sha256:" + "a" * 64
IDS = [7 * i % 1000 for i in range(100)]


class Source:
    """What renders: ``answers`` one after the other, or raises one."""

    def __init__(self, *answers: Rendered | Exception) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []

    def tokenizer(self) -> str:
        return "tokenizer"

    async def render(self, body: bytes, _api: BodyKind = BodyKind.OPENAI) -> Rendered:
        self.bodies.append(body)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def prompt(self, engine_input: dict[str, Any], _model: str | None) -> Prompt:
        ids = engine_input["prompt_token_ids"]
        return Prompt(ids, len(ids))

    def adapter(self, model: str | None) -> str:
        return "" if model == "tiny" else f"adapter {model}"


def one(ids: list[int] = IDS, *, plain: int | None = None, salt: str = "", adapter: str = "") -> Rendered:
    return Rendered((Prompt(ids, len(ids) if plain is None else plain),), salt, adapter)


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_service, "unmet", lambda _feature: "")


@pytest.fixture(params=CODES)
def settings(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PluginSettings:
    (tmp_path / "index").write_text(base64.urlsafe_b64encode(INDEX_KEY).decode())
    monkeypatch.setattr(key_service, "available_code", lambda: request.param)
    return PluginSettings(index_key_file=tmp_path / "index")


def service(
    settings: PluginSettings, *answers: Rendered | Exception, cache: Any = None, block_size: int | None = 16
) -> KeyService:
    own = process(settings)
    own.parts["tokens"] = cache
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_service, "PromptSource", lambda _state: Source(*answers))
        return KeyService(own, SimpleNamespace(), block_size=block_size)


async def asked(service: KeyService, **query: str) -> list[prompt_keys.PromptKeys]:
    answer = await service.answer({"contract": CONTRACT, **query}, b"{}")
    assert answer.media_type == prompt_keys.MEDIA_TYPE
    assert isinstance(answer.content, bytes)
    return prompt_keys.decode(answer.content)


def keyed(ids: list[int], block_size: int = 16, *, salt: str = "", lora: str = "", lookahead: int = 0) -> bytes:
    return BlockKeyer(INDEX_KEY, Namespace(CONTRACT, salt, lora), block_size, lookahead).packed_keys(ids)


async def test_keys_look_ahead_as_the_contract_does(settings: PluginSettings) -> None:
    placed = (Placed("i", 32, 1),)
    answers = one(), one(plain=33), Rendered((Prompt(IDS, 100, placed),), "", "")
    made = service(settings, *answers)
    assert (await asked(made, lookahead="1"))[0].keys == keyed(IDS, lookahead=1)
    assert (await asked(made, lookahead="2"))[0].keys == keyed(IDS[:33], lookahead=2) == keyed(IDS, lookahead=2)[:8]
    keyer = MediaKeyer(INDEX_KEY, Namespace(CONTRACT), BlockKeyer(INDEX_KEY, Namespace(CONTRACT), 16, 1))
    blocks = [[], [("i", 16)], [("i", 0)], [], [], []]
    assert (await asked(made, lookahead="1"))[0].keys == pack_keys(keyer.keys(IDS, blocks))
    hold = Hold(length=1, contract=CONTRACT, block_size=16, lookahead=3, model="tiny")
    (found,) = prompt_keys.decode(await made.of_prompt(hold, {"prompt_token_ids": IDS}))
    assert found.keys == keyed(IDS, lookahead=3)


@pytest.mark.parametrize("lookahead", ["-1", "x", "1025", "99999"])
async def test_a_lookahead_out_of_range_is_refused(settings: PluginSettings, lookahead: str) -> None:
    with pytest.raises(HttpError, match="lookahead: must be from 0 to 1024"):
        await asked(service(settings, one()), lookahead=lookahead)


async def test_keys_are_those_of_the_contract_salt_and_adapter(settings: PluginSettings) -> None:
    answers = (one(), one(salt="s"), one(adapter="a"), one(salt="s", adapter="a"))
    made = service(settings, *answers)
    got = [(await asked(made, **query))[0].keys for query in ({}, {}, {}, {"lora": "b"})]
    assert got == [keyed(IDS), keyed(IDS, salt="s"), keyed(IDS, lora="a"), keyed(IDS, salt="s", lora="b")]
    assert len(set(got)) == 4


@pytest.mark.parametrize("offloop", [1, 1_000_000])
@pytest.mark.parametrize(("salt", "model", "lora"), [(None, "tiny", ""), ("s", "tiny", ""), ("s", "b", "adapter b")])
async def test_held_prompts_have_the_keys_of_their_salt_and_adapter(
    settings: PluginSettings, salt: str | None, model: str, lora: str, offloop: int
) -> None:
    made = service(replace(settings, keys_offloop_tokens=offloop), block_size=None)
    hold = Hold(length=1, contract=CONTRACT, block_size=40, model=model, ids=True)
    document = await made.of_prompt(hold, {"prompt_token_ids": IDS, "cache_salt": salt})
    (found,) = prompt_keys.decode(document)
    assert (found.block_size, found.tokens, found.ids) == (40, 100, pack_tokens(IDS))
    assert found.keys == keyed(IDS, 40, salt=salt or "", lora=lora)


async def test_a_held_prompt_without_ids_has_no_keys(settings: PluginSettings) -> None:
    hold = Hold(length=1, contract=CONTRACT, block_size=16)
    assert await service(settings).of_prompt(hold, None) == b""
    assert await service(settings).of_prompt(hold, {"prompt_token_ids": [-1]}) == b""


async def test_the_block_size_is_the_engines_or_the_one_asked_for(settings: PluginSettings) -> None:
    made = service(settings, one(), one())
    (own,), (other,) = await asked(made), await asked(made, block_size="40")
    assert (own.block_size, len(own.keys), own.tokens) == (16, 6 * 8, 100)
    assert (other.block_size, other.keys) == (40, keyed(IDS, 40))


async def test_ids_come_only_when_asked_for(settings: PluginSettings) -> None:
    made = service(settings, one(), one(), one())
    assert [(await asked(made, **query))[0].ids for query in ({}, {"ids": "0"})] == [b"", b""]
    assert (await asked(made, ids="1"))[0].ids == pack_tokens(IDS)


async def test_several_prompts_have_an_entry_each(settings: PluginSettings) -> None:
    made = service(settings, Rendered((Prompt(IDS, 100), Prompt([1, 2], 2)), "", ""))
    first, second = await asked(made)
    assert (first.tokens, second.tokens, second.keys) == (100, 2, b"")


async def test_media_are_part_of_the_keys(settings: PluginSettings) -> None:
    placed = (Placed("i", 20, 30), Placed("j", 50, 1))
    made = service(settings, Rendered((Prompt(IDS, 100, placed),), "s", ""), one(salt="s"))
    (found,), (plain,) = await asked(made), await asked(made)
    namespace = Namespace(CONTRACT, "s")
    keyer = MediaKeyer(INDEX_KEY, namespace, BlockKeyer(INDEX_KEY, namespace, 16))
    blocks = [[], [("i", 4)], [("i", -12)], [("i", -28), ("j", 2)], [], []]
    assert found.keys == pack_keys(keyer.keys(IDS, blocks))
    assert [a == b for a, b in zip(unpack_keys(found.keys), unpack_keys(plain.keys), strict=True)] == [
        True,
        *[False] * 5,
    ]


async def test_blocks_from_an_unknown_medium_on_have_no_key(settings: PluginSettings) -> None:
    made = service(settings, one(plain=33), one(plain=0))
    (found,) = await asked(made)
    assert (found.tokens, found.keys) == (100, keyed(IDS[:33]))
    assert (await asked(made))[0].keys == b""


async def test_boundaries_are_those_of_the_token_cache(settings: PluginSettings) -> None:
    cache = SimpleNamespace(boundaries=lambda tokenizer, ids: [3, len(ids) - 1] if tokenizer == "tokenizer" else [])
    assert (await asked(service(settings, one(), cache=cache)))[0].boundaries == (3, 99)
    assert (await asked(service(settings, one())))[0].boundaries == ()


async def test_either_code_answers_with_the_same_bytes(
    settings: PluginSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = (one(salt="s"), one(IDS[:5]), one(plain=33), Rendered((Prompt(IDS, 100), Prompt([1 << 31], 1)), "", "a"))
    cache = SimpleNamespace(boundaries=lambda _tokenizer, ids: [1, len(ids)])
    said = {}
    for code in (PYTHON, native_code()):
        monkeypatch.setattr(key_service, "available_code", lambda code=code: code)
        made = service(settings, *answers, *answers, cache=cache)
        queries = ({"contract": CONTRACT}, {"contract": CONTRACT, "ids": "1", "block_size": "3"})
        assert made.cache is not None
        assert type(made.cache._keyer(Namespace(CONTRACT), 3)[1]) is code.keyer
        said[code.name] = [(await made.answer(query, b"{}")).content for query in queries for _ in answers]
    assert said["python"] == said["native"]
    assert len(set(said["python"])) == 8


@over_both
async def test_the_code_that_was_chosen_is_logged(
    code: Code, settings: PluginSettings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(key_service, "available_code", lambda: code)
    service(settings)
    assert f"cachefleet: block keys in {code.name} code: {code.reason}" in caplog.messages


@pytest.mark.parametrize("content", ["raise SystemError('no fit')", "raise ImportError('no fit')", "API = 99"])
async def test_native_code_that_does_not_fit_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (tmp_path / "index").write_text(base64.urlsafe_b64encode(INDEX_KEY).decode())
    (tmp_path / "cachefleet_native.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cachefleet_native", raising=False)
    settings = PluginSettings(index_key_file=tmp_path / "index")
    made = service(settings, one())
    assert (await asked(made))[0].keys == keyed(IDS)
    assert not made._faults.counts


async def test_long_prompts_are_hashed_off_the_event_loop(settings: PluginSettings) -> None:
    threads: list[int] = []

    def boundaries(*_: object) -> list[int]:
        threads.append(threading.get_ident())
        return []

    cache = SimpleNamespace(boundaries=boundaries)
    made = service(replace(settings, keys_offloop_tokens=100), one(), one(IDS[:99]), cache=cache)
    assert (await asked(made))[0].keys == keyed(IDS)
    await asked(made)
    assert [thread == threading.get_ident() for thread in threads] == [False, True]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"contract": ""}, "bad_contract"),
        ({"contract": "sha256:" + "A" * 64}, "bad_contract"),
        ({"contract": CONTRACT + "\n"}, "bad_contract"),
        ({"lora": "x" * 1025}, "bad_lora"),
        ({"ids": "yes"}, "bad_ids"),
        ({"block_size": "0"}, "bad_block_size"),
        ({"block_size": "-1"}, "bad_block_size"),
        ({"block_size": "65537"}, "bad_block_size"),
        ({"block_size": "1e3"}, "bad_block_size"),
        ({"block_size": "٣"}, "bad_block_size"),
    ],
)
async def test_a_bad_query_is_named_and_nothing_is_rendered(
    settings: PluginSettings, query: dict[str, str], code: str
) -> None:
    made = service(settings)
    with pytest.raises(HttpError) as refused:
        await made.answer({"contract": CONTRACT, **query}, b"{}")
    assert (refused.value.status, refused.value.code) == (400, code)


async def test_a_server_that_knows_no_block_size_wants_one(settings: PluginSettings) -> None:
    made = service(settings, one(), block_size=None)
    with pytest.raises(HttpError, match="block_size: must be from 1 to 65536, got ''"):
        await asked(made)
    assert (await asked(made, block_size="32"))[0].block_size == 32


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"index_key_file": None}, "CACHEFLEET_INDEX_KEY_FILE names no key"),
        ({"index_key_file": Path("/dev/null")}, "an index key is 32 bytes, got 0"),
        ({"plugin_off": frozenset({"keys"})}, "switched off by CACHEFLEET_PLUGIN_OFF"),
    ],
)
async def test_what_is_off_says_why(settings: PluginSettings, change: dict[str, Any], reason: str) -> None:
    made = service(replace(settings, **change))
    with pytest.raises(HttpError, match=reason) as refused:
        await asked(made)
    assert (refused.value.status, refused.value.code) == (503, "keys_off")


async def test_a_vllm_that_cannot_be_asked_is_no_fault(
    settings: PluginSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(_state: object) -> None:
        raise NoRenderingError("no renderer as known")

    own = process(settings)
    monkeypatch.setattr(key_service, "PromptSource", unsupported)
    with pytest.raises(HttpError, match="no renderer as known"):
        await KeyService(own, SimpleNamespace()).answer({"contract": CONTRACT}, b"{}")
    monkeypatch.setattr(key_service, "unmet", lambda feature: f"vLLM 9 lacks what {feature} need")
    with pytest.raises(HttpError, match="vLLM 9 lacks what keys need"):
        await KeyService(own, SimpleNamespace()).answer({"contract": CONTRACT}, b"{}")
    assert not own.faults.counts


@pytest.mark.parametrize("ids", [[1 << 40] * 40, [1, -1]])
async def test_ids_that_are_none_are_the_bodys_fault(settings: PluginSettings, ids: list[int]) -> None:
    made = service(settings, *[one(ids)] * 4, one())
    for _ in range(4):
        with pytest.raises(HttpError, match="token ids must be integers from 0 to 4294967295") as refused:
            await asked(made)
        assert (refused.value.status, refused.value.code) == (400, "bad_token_ids")
    assert await asked(made)


async def test_faults_in_a_row_turn_it_off_and_one_alone_does_not(settings: PluginSettings) -> None:
    faults = [ZeroDivisionError(), ZeroDivisionError()]
    made = service(settings, *faults, one(), *faults, RefusedError(ValueError()), ZeroDivisionError(), one())
    for error in (ZeroDivisionError, ZeroDivisionError, None, ZeroDivisionError, ZeroDivisionError):
        if error is None:
            await asked(made)
            continue
        with pytest.raises(error):
            await asked(made)
    with pytest.raises(RefusedError):
        await asked(made)
    with pytest.raises(ZeroDivisionError):
        await asked(made)
    with pytest.raises(HttpError, match="3 faults in a row"):
        await asked(made)
    assert made._capabilities.mode("keys") == "off"
