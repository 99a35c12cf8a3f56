"""``/v1/fleet/keys`` against vLLM's own ``/render``, over HTTP, on render servers with a tokenizer of 60,000 entries.

    python -m bench.keys

Two real servers without an engine: one with the plugin, one stock. Every request is a follow-up turn that its server
has not seen, in a conversation that it has. Before anything is timed, all answers are checked to be the same ids. The
times are medians of whole answers, in milliseconds. ``run`` gives the rows to other programs.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.rows import Row, median, row
from bench.tokens import Sides, Writer
from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.continuation import unpacked
from cachefleet_core.prompt_keys import decode
from cachefleet_local.models.tiny_model import tiny_model_path
from cachefleet_local.models.tiny_tokenizer import CHAT_TEMPLATE
from e2e.engine.vllm import INDEX_KEY, VllmOptions, VllmServer, running_vllm
from tests.worker.plugin.tokens.styles import BIG, trained

ROUNDS: Final = 31
WARM_UP: Final = 5
SEED: Final = 91
MESSAGE_TOKENS: Final = 600
STYLE: Final = "qwen"
CONTRACT: Final = "sha256:" + "c" * 64
KEYS: Final = f"/v1/fleet/keys?contract={CONTRACT}"
RENDER: Final = "/v1/chat/completions/render"
STOCK: Final = VllmOptions(cli="launch render", max_model_len=32_768)
PLUGIN: Final = VllmOptions(cli="launch render", max_model_len=32_768, plugin=True)
CASES: Final = {"90 % shared": (9_000, 1_000), "99 % shared": (9_900, 100)}

Messages = list[dict[str, str]]


class Server:
    """One connection that is kept open, as a gateway would."""

    def __init__(self, server: VllmServer) -> None:
        address = urlsplit(server.url)
        self._connection = HTTPConnection(str(address.hostname), address.port, timeout=60)
        self._headers = {**server.headers, "Content-Type": "application/json"}

    def post(self, path: str, messages: Messages) -> tuple[float, bytes]:
        """Milliseconds until the whole answer was there, and the answer."""
        body = json.dumps({"model": "tiny", "messages": messages, "max_tokens": 8}).encode()
        started = time.perf_counter()
        self._connection.request("POST", path, body, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        took = (time.perf_counter() - started) * 1000
        assert answer.status == 200, content
        return took, content


def run(*, rounds: int = ROUNDS) -> list[Row]:
    """Keys against the render of the same server, and against stock. AssertionError where ids differ."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, on import
        writer = Writer(Sides(STYLE), STYLE, random.Random(SEED))
    with _servers() as (stock, ours):
        return [_printed(each) for name in CASES for each in _rows(name, writer, stock, ours=ours, rounds=rounds)]


def _rows(name: str, writer: Writer, stock: Server, *, ours: Server, rounds: int) -> Iterator[Row]:
    known, new = CASES[name]
    talk = _messages(writer, known)
    times: dict[str, list[float]] = {name: [] for name in ("keys", "render", "stock", "keys used", "render used")}
    _check(talk + _messages(writer, new), stock, ours)
    for number in range(WARM_UP + rounds):
        calls = [("keys", ours, KEYS), ("render", ours, RENDER), ("stock", stock, RENDER)]
        for each, server, path in calls if number % 2 else reversed(calls):
            took, content = server.post(path, talk + _messages(writer, new))
            if number >= WARM_UP:
                times[each].append(took)
                if server is ours:
                    times[f"{each} used"].append(took + _used(each, content))
    found = {each: median(values) for each, values in times.items()}
    yield row(f"10k tokens, {name}: keys against /render with the cache", found["keys"], found["render"])
    yield row(f"10k tokens, {name}: keys against stock /render", found["keys"], found["stock"])
    yield row(f"10k tokens, {name}: keys in a caller's hands", found["keys used"], found["render used"])


def _used(each: str, content: bytes) -> float:
    """Milliseconds until a caller has block keys of an answer: decoded, or made of the ids in it."""
    keyer = BlockKeyer(INDEX_KEY, Namespace(CONTRACT), PLUGIN.block_size)
    started = time.perf_counter()
    if each == "keys":
        decode(content)
    else:
        keyer.keys(json.loads(content)["token_ids"])
    return (time.perf_counter() - started) * 1000


def _check(messages: Messages, stock: Server, ours: Server) -> None:
    """The same ids everywhere; asked again, so that both caches have answered too."""
    expected = json.loads(stock.post(RENDER, messages)[1])["token_ids"]
    for _ in range(2):
        (prompt,) = decode(ours.post(f"{KEYS}&ids=1", messages)[1])
        assert unpacked(prompt.ids).tolist() == expected, "ids differ"
        assert json.loads(ours.post(RENDER, messages)[1])["token_ids"] == expected, "ids differ"
    assert len(prompt.keys) // 8 == len(expected) // prompt.block_size


def _messages(writer: Writer, tokens: int) -> Messages:
    roles = ("user", "assistant")
    return [
        {"role": roles[at % 2], "content": writer.message(min(MESSAGE_TOKENS, tokens - at * MESSAGE_TOKENS))}
        for at in range(-(-tokens // MESSAGE_TOKENS))
    ]


@contextmanager
def _servers() -> Iterator[tuple[Server, Server]]:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cachefleet-bench-")))
        folder = root / "model"
        folder.mkdir()
        _write_model(folder)

        def started(name: str, options: VllmOptions) -> Server:
            (root / name).mkdir()
            return Server(stack.enter_context(running_vllm(options, folder, root / name / "vllm.log")))

        with ThreadPoolExecutor() as pool:
            stock, ours = pool.map(started, ("stock", "plugin"), (STOCK, PLUGIN))
        yield stock, ours


def _write_model(folder: Path) -> None:
    """A model's description without weights, which a render server does not load."""
    tokenizer = trained(STYLE, BIG)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = json.loads((tiny_model_path() / "config.json").read_text())
    config |= {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 32_768}
    (folder / "config.json").write_text(json.dumps(config))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "eos_token": "<|im_end|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))


def _printed(each: Row) -> Row:
    print(f"  {each['row']:<64}{each['ours']:8.2f}{each['peer']:8.2f}{each['ratio']:8.3f} {each['unit']}", flush=True)
    return each


if __name__ == "__main__":
    run()
