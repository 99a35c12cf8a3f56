from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from cachefleet_local.models import tiny_model
from cachefleet_local.models.tiny_tokenizer import byte_alphabet, train
from cachefleet_local.models.words import WORDS

TINY = tiny_model.SIZES[tiny_model.TINY_SOURCE]
CONTENT = "e81a3e8f"
"""Of the files of RECIPE 1; where this changes, RECIPE must."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model.make_model(path, TINY)
    return path


def test_files_follow_from_the_recipe_alone(made: Path) -> None:
    content = hashlib.sha256()
    for file in sorted(made.iterdir()):
        content.update(file.name.encode() + file.read_bytes())
    assert (tiny_model.RECIPE, content.hexdigest()[:8]) == (1, CONTENT)


def test_weights_are_a_safetensors_file_of_every_tensor(made: Path) -> None:
    data = (made / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__")
    assert max(tensor["data_offsets"][1] for tensor in header.values()) == len(data) - 8 - size
    assert header["lm_head.weight"]["shape"] == [tiny_model.VOCABULARY, TINY.hidden]
    assert len(header) == 3 + 12 * TINY.layers


def test_tokenizer_round_trips_any_text(made: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(made / "tokenizer.json"))
    text = "The agent reads.\n\tTwo  spaces, 123 _x_ Привет 世界 🙂"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("<|im_start|>").ids == [tiny_model.VOCABULARY - 2]
    assert tokenizer.get_vocab_size() == tiny_model.VOCABULARY


def test_ordinary_words_are_few_tokens(made: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(made / "tokenizer.json"))
    assert len(tokenizer.encode(" ".join(WORDS)).ids) < 1.3 * len(WORDS)


def test_training_prefers_frequent_pairs_then_those_that_sort_first() -> None:
    ids, merges = train(["aab"], 256 + 3 + 2)
    space = byte_alphabet()[ord(" ")]
    assert merges == [("a", "a"), ("aa", "b")]
    assert ids["aab"] == 257
    assert ids[space] == ord(" ")


def test_path_is_below_the_users_cache_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_model.tiny_model_path({"XDG_CACHE_HOME": str(tmp_path)})
    assert path.parent == tmp_path / "cachefleet" / "models"
    monkeypatch.setattr(tiny_model, "model_files", lambda _: pytest.fail("made twice"))
    assert tiny_model.tiny_model_path({"XDG_CACHE_HOME": str(tmp_path)}) == path


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_model, "model_files", lambda _: iter([("missing/folder", b"")]))
    with pytest.raises(FileNotFoundError):
        tiny_model.make_model(tmp_path / "models" / "tiny", TINY)
    assert list((tmp_path / "models").iterdir()) == []


def test_losing_the_race_keeps_the_winners_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny"
    path.mkdir()
    (path / "config.json").write_text("winner")
    monkeypatch.setattr(tiny_model, "model_files", lambda _: iter([("config.json", b"loser")]))
    tiny_model.make_model(path, TINY)
    assert (path / "config.json").read_text() == "winner"
    assert list(tmp_path.iterdir()) == [path]


def test_sizes_differ_in_name_and_in_nothing_but_size() -> None:
    tiny, small = tiny_model.SIZES[tiny_model.TINY_SOURCE], tiny_model.SIZES[tiny_model.SMALL_SOURCE]
    assert tiny_model.model_digest(tiny) != tiny_model.model_digest(small)
    assert (tiny.kv_bytes_per_token, small.kv_bytes_per_token) == (512, 2048)


def test_only_our_own_sources_are_made(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        tiny_model.made_model_path("Qwen/Qwen3-32B", {"XDG_CACHE_HOME": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
