"""Memoised tokenisation as a process uses it: proven first, apart for each tenant, watched, off on a mismatch."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.tokens import cached_encoder
from cachefleet_worker.plugin.tokens.background_tokenizer import Job
from cachefleet_worker.plugin.tokens.cached_encoder import CachedEncoder
from cachefleet_worker.plugin.tokens.encoding_plan import PlainOnly, Reason
from tests.worker.plugin.tokens.styles import trained
from tests.worker.plugin.tokens.wrapped import OwnWay, Wrapped

pytestmark = pytest.mark.usefixtures("quick_self_test")

TEXT = "<|im_start|>user\nA question with many words in it, and some more.<|im_end|>\n<|im_start|>assistant\n"


class Setting:
    """A cache over one small tokenizer of the Qwen kind."""

    def __init__(self, *, sample_ratio: float = 0.0, max_bytes: int = 1 << 20) -> None:
        self.capabilities = Capabilities()
        self.faults = Faults(self.capabilities)
        self.cache = CachedEncoder(
            self.capabilities, self.faults, max_bytes=max_bytes, sample_ratio=sample_ratio, rng=random.Random(1)
        )
        self.tokenizer: Any = Wrapped(trained("qwen"))

    def encode(self, text: str = TEXT, salt: str = "", **changes: Any) -> list[int] | None:
        arguments = {"add_special_tokens": False, "max_length": None, "plain": lambda: self.plain(text)} | changes
        return self.cache.encode(self.tokenizer, text, salt, **arguments)

    def plain(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def prepared(self) -> Setting:
        assert self.cache.prepare(self.tokenizer) is None
        return self


def test_the_first_text_is_left_to_the_plain_encoder_and_has_the_tokenizer_prepared() -> None:
    setting = Setting()
    assert setting.capabilities.mode("tokens") == "off"
    assert setting.encode() is None
    setting.cache.settle()
    assert setting.encode() == setting.plain(TEXT)
    assert setting.capabilities.mode("tokens") == "cache"
    assert setting.cache.stats()["plain_preparing"] == 1
    assert setting.cache.stats()["memoised"] == 1


def test_a_tokenizer_is_prepared_once_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting()
    jobs: list[Job] = []
    submit = setting.cache._background.submit

    def take(job: Job) -> bool:
        jobs.append(job)
        return submit(job)

    monkeypatch.setattr(setting.cache._background, "submit", take)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: setting.encode(), range(32)))
    setting.cache.settle()
    assert setting.cache._seat(setting.tokenizer).encoder is not None
    assert len(jobs) == 1


@pytest.mark.parametrize(
    ("changes", "counter"),
    [
        ({"text": "short"}, "plain_short"),
        ({"max_length": 3}, "plain_long"),
        ({"text": TEXT + "\ud800"}, "plain_unencodable"),
    ],
)
def test_what_it_does_not_know_falls_through(changes: dict[str, Any], counter: str) -> None:
    setting = Setting().prepared()
    assert setting.encode(**changes) is None
    assert setting.cache.stats()[counter] == 1
    assert setting.encode() == setting.plain(TEXT)  # and nothing was switched off
    assert setting.faults.on("tokens")


def test_a_text_of_exactly_the_length_allowed_is_memoised() -> None:
    setting = Setting().prepared()
    ids = setting.plain(TEXT)
    assert setting.encode(max_length=len(ids)) == ids
    assert setting.encode(max_length=len(ids) - 1) is None


def test_two_salts_never_share_an_entry() -> None:
    setting = Setting().prepared()
    seen = {}
    for salt in ("", "a", "b"):
        before = setting.cache.stats()
        setting.encode(salt=salt)
        after = setting.cache.stats()
        seen[salt] = (after["part_hits"] - before["part_hits"], after["entries"] - before["entries"])
    parts = seen[""][1]
    assert parts > 0
    assert seen == dict.fromkeys(("", "a", "b"), (0, parts))
    before = setting.cache.stats()
    setting.encode(salt="a")
    assert setting.cache.stats()["part_misses"] == before["part_misses"]


def test_memory_stays_within_its_bound() -> None:
    setting = Setting(max_bytes=20_000).prepared()
    for number in range(300):
        text = TEXT.replace("question", f"question {number}")
        assert setting.encode(text) == setting.plain(text)
    stats = setting.cache.stats()
    assert 0 < stats["bytes"] <= 20_000
    assert stats["evicted"] > 0


def test_samples_are_checked_elsewhere_and_agree() -> None:
    setting = Setting(sample_ratio=1.0).prepared()
    threads: list[str] = []

    def plain() -> list[int]:
        threads.append(threading.current_thread().name)
        return setting.plain(TEXT)

    for _ in range(5):
        setting.encode(plain=plain)
        setting.cache.settle()
    assert setting.cache.stats()["samples"] == 5
    assert threads == ["cachefleet-tokens"] * 5
    assert setting.capabilities.mode("tokens") == "cache"


def test_a_sample_that_differs_switches_it_off_for_good() -> None:
    setting = Setting(sample_ratio=1.0).prepared()
    setting.encode(plain=lambda: [1, 2, 3])
    setting.cache.settle()
    assert setting.encode() is None
    stats = setting.cache.stats()
    assert (stats["mismatches"], stats["plain_refused"], stats["entries"]) == (1, 1, 0)
    assert setting.cache.reason(setting.tokenizer) == PlainOnly(Reason.MISMATCH)
    (capability,) = setting.capabilities.document()
    assert (capability.mode, capability.reason) == ("off", Reason.MISMATCH.value)
    setting.cache.settle()
    assert setting.encode() is None  # and is not prepared anew


def test_two_tokenizers_keep_their_ids_apart() -> None:
    setting = Setting().prepared()
    other = Wrapped(trained("o200k"))
    assert setting.cache.prepare(other) is None
    text = "A text without any added token, so that both of them see the very same part of it."
    ids = other._tokenizer.encode(text, add_special_tokens=False).ids
    assert setting.encode(text) == setting.plain(text) != ids
    assert setting.cache.encode(other, text, "", plain=list, add_special_tokens=False, max_length=None) == ids


def test_another_tokenizer_is_not_touched_by_it() -> None:
    setting = Setting(sample_ratio=1.0).prepared()
    other = Wrapped(trained("llama3"))
    assert setting.cache.prepare(other) is None
    setting.encode(plain=list)
    setting.cache.settle()
    ids = other._tokenizer.encode(TEXT, add_special_tokens=True).ids
    assert setting.cache.encode(other, TEXT, "", plain=lambda: ids, add_special_tokens=True, max_length=None) == ids
    assert setting.encode() is None


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.0, 0, 0), (0.25, 150, 350), (1.0, 1000, 1000)])
def test_the_ratio_of_samples_is_the_settings(
    ratio: float, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(sample_ratio=ratio).prepared()
    taken: list[Job] = []

    def take(job: Job) -> bool:
        taken.append(job)
        return True

    monkeypatch.setattr(setting.cache._background, "submit", take)
    for _ in range(1000):
        setting.encode()
    assert least <= len(taken) <= most


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"split_special_tokens": True}, Reason.SPLITS_SPECIALS),
        ({"_tokenizer": object()}, Reason.NOT_FAST),
        ({"_tokenizer": None}, Reason.NOT_FAST),
    ],
)
def test_tokenizers_of_another_kind_are_refused(change: dict[str, Any], reason: Reason) -> None:
    setting = Setting()
    for name, value in change.items():
        setattr(setting.tokenizer, name, value)
    refusal = setting.cache.prepare(setting.tokenizer)
    assert refusal is not None
    assert refusal.reason is reason
    assert setting.capabilities.document()[0].reason == str(refusal)


def test_a_class_with_its_own_way_to_encode_is_refused() -> None:
    setting = Setting()
    refusal = setting.cache.prepare(OwnWay(trained("qwen")))
    assert refusal == PlainOnly(Reason.OVERRIDDEN, "OwnWay.__call__")


def test_a_tokenizer_that_fails_its_self_test_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting()
    monkeypatch.setattr("cachefleet_worker.plugin.tokens.splitter.Splitter.parts", lambda _self, _text: iter((7,)))
    refusal = setting.cache.prepare(setting.tokenizer)
    assert refusal is not None
    assert refusal.reason is Reason.SELF_TEST


def test_many_threads_get_the_right_ids_while_entries_come_and_go() -> None:
    setting = Setting(max_bytes=60_000).prepared()
    texts = [TEXT.replace("question", f"question {number % 50}") * (1 + number % 7) for number in range(400)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda item: setting.encode(item[1], f"salt {item[0] % 3}"), enumerate(texts)))
    assert found == [setting.plain(text) for text in texts]
    assert setting.cache.stats()["bytes"] <= 60_000


def fail() -> list[int]:
    raise LookupError


def test_a_fault_in_the_background_switches_the_feature_off() -> None:
    setting = Setting(sample_ratio=1.0).prepared()
    setting.encode(plain=fail)
    setting.cache.settle()
    assert not setting.faults.on("tokens")
    assert setting.faults.counts["tokens"] == 1


def test_dropped_samples_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(sample_ratio=1.0).prepared()
    monkeypatch.setattr(setting.cache._background, "submit", lambda _job: False)
    assert setting.encode() == setting.plain(TEXT)
    assert setting.cache.stats()["samples_dropped"] == 1


def test_boundaries_come_from_the_tokenizers_own_tokens() -> None:
    setting = Setting()
    start = setting.tokenizer._tokenizer.token_to_id("<|im_start|>")
    ids = setting.plain(TEXT)
    found = setting.cache.boundaries(setting.tokenizer, ids)
    assert [ids[position - 1] for position in found] == [start, start]
    assert setting.cache.boundaries(setting.tokenizer, ids, reused=found[0]) == found[1:]
    assert setting.cache.boundaries(Wrapped(trained("unigram")), ids) == []


def test_short_texts_are_shorter_than_any_that_is_worth_it() -> None:
    assert len(TEXT) > cached_encoder.SHORTEST_TEXT


class PanicException(BaseException):
    """As PyO3 raises it."""


def panic(*_args: Any, **_options: Any) -> Any:
    raise PanicException


def test_a_panic_of_the_library_sends_the_text_to_the_plain_encoder() -> None:
    setting = Setting().prepared()
    encoder = setting.cache._seat(setting.tokenizer).encoder
    assert encoder is not None
    encoder._encode_batch = panic
    assert setting.encode() is None
    assert setting.cache.stats()["plain_unencodable"] == 1
    assert setting.faults.on("tokens")
