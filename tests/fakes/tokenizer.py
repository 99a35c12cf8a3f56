"""Text to token ids and back, and the ChatML template: the fake engine's own, or a tokenizer folder's."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

Message = Mapping[str, Any]

SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_FIRST_SPECIAL: Final = 256
_SPECIAL_ID: Final = {text: _FIRST_SPECIAL + i for i, text in enumerate(SPECIAL)}
_SPLIT: Final = re.compile("(" + "|".join(re.escape(text) for text in SPECIAL) + ")")


_BILLING: Final = "x-anthropic-billing-header"


class Decoder(Protocol):
    """Turns one sequence's ids into text, holding back characters that are not whole yet."""

    def feed(self, ids: Sequence[int]) -> str: ...


class Tokenizer(Protocol):
    eos: int
    vocabulary: int
    max_new_tokens: int | None
    """The model's own default for the length of an answer."""
    alphabet: list[int]
    """Ids that a fake answer is made of."""
    follow: dict[int, int]
    """Ids that must be followed by a certain other one (the bytes of a multi-byte character)."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def pieces(self, ids: Sequence[int]) -> list[str]: ...
    def decoder(self) -> Decoder: ...
    def render(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str: ...


class ByteTokenizer:
    """One token a byte, and three special ones."""

    def __init__(self, *, multibyte: bool = False) -> None:
        self.eos = _SPECIAL_ID["<|im_end|>"]
        self.vocabulary = 512
        self.max_new_tokens: int | None = None
        characters = "é字😀" if multibyte else ""
        self.follow = {lead: after for c in characters for lead, after in _pairs(c.encode())}
        leads = [c.encode()[0] for c in characters]
        self.alphabet = list(b"abcdefghijklmnopqrstuvwxyz       ") + 4 * leads

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in _SPLIT.split(text):
            special = _SPECIAL_ID.get(part)
            ids += part.encode() if special is None else [special]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < _FIRST_SPECIAL).decode(errors="replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [SPECIAL[i - _FIRST_SPECIAL] if i >= _FIRST_SPECIAL else chr(i) for i in ids]

    def decoder(self) -> Decoder:
        return _ByteDecoder()

    def render(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str:
        return chatml(messages, options)


class _ByteDecoder:
    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Sequence[int]) -> str:
        return self._utf8.decode(bytes(i for i in ids if i < _FIRST_SPECIAL))


class FolderTokenizer:
    """A Hugging Face tokenizer folder (tokenizer.json, tokenizer_config.json), without transformers."""

    def __init__(self, folder: Path) -> None:
        import tokenizers  # noqa: PLC0415 # only where a folder is given

        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = json.loads((folder / "tokenizer_config.json").read_text())
        model = json.loads((folder / "config.json").read_text())
        eos = config["eos_token"]
        self._special = {k: config[k] for k in ("bos_token", "eos_token", "pad_token") if config.get(k)}
        self.eos = self._id_of(eos if isinstance(eos, str) else eos["content"])
        self.vocabulary = int(model["vocab_size"])
        self.max_new_tokens = _generation(folder).get("max_new_tokens")
        self.follow: dict[int, int] = {}
        self.alphabet = self._plain_ids()
        self._template = _compile(_template_text(folder, config))

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(self._tokenizer.id_to_token(i) or "") for i in ids]

    def decoder(self) -> Decoder:
        return _StreamDecoder(self._tokenizer)

    def render(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str:
        return str(self._template.render(messages=messages, **{"tools": None, **self._special, **options}))

    def _id_of(self, token: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise ValueError(f"the tokenizer has no token {token!r}")
        return int(found)

    def _plain_ids(self) -> list[int]:
        ids = range(min(self.vocabulary, self._tokenizer.get_vocab_size()))
        return [i for i in ids if i != self.eos and re.fullmatch("[a-z ]+", self.decode([i]))]


class _StreamDecoder:
    def __init__(self, tokenizer: Any) -> None:
        from tokenizers.decoders import DecodeStream  # noqa: PLC0415 # as above

        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def feed(self, ids: Sequence[int]) -> str:
        return "".join(self._stream.step(self._tokenizer, i) or "" for i in ids)


def chatml(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
    """The ChatML rendering of a conversation; tools, where given, are told in a system turn of their own."""
    parts = []
    if options.get("tools"):
        tools = "\n".join(json.dumps(tool, sort_keys=False) for tool in options["tools"])
        parts.append(f"<|im_start|>system\n# Tools\n{tools}<|im_end|>\n")
    for message in messages:
        calls = "".join(f"\n{json.dumps(call)}" for call in message.get("tool_calls") or ())
        parts.append(f"<|im_start|>{message['role']}\n{message.get('content') or ''}{calls}<|im_end|>\n")
    if options.get("add_generation_prompt", True):
        parts.append("<|im_start|>assistant\n")
    return "".join(parts)


def flatten(message: Message) -> dict[str, Any]:
    """A message with its content as one text, as vLLM gives it to a template of string format."""
    content = message.get("content")
    if message.get("role") == "system":
        content = _without_billing(content)
    if isinstance(content, list):
        content = "\n".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)
    return {**message, "content": content or ""}


def load_tokenizer(folder: Path | None, *, multibyte: bool = False) -> Tokenizer:
    if folder is None:
        return ByteTokenizer(multibyte=multibyte)
    return FolderTokenizer(folder)


def _pairs(data: bytes) -> list[tuple[int, int]]:
    return list(pairwise(data))


def _generation(folder: Path) -> dict[str, Any]:
    file = folder / "generation_config.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


def _template_text(folder: Path, config: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    return file.read_text() if file.exists() else str(config["chat_template"])


def _compile(text: str) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415 # only where a folder is given

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(text)


def _without_billing(content: Any) -> Any:
    """A system message without the line that Claude Code begins its text with, which vLLM 0.32 leaves out.

    Of parts those of type ``text`` alone: responses have others.
    """
    if isinstance(content, list):
        return [
            part | {"text": _without_billing(part["text"])} if part.get("type") == "text" else part for part in content
        ]
    return content.partition("\n")[2] if str(content).startswith(_BILLING) else content
