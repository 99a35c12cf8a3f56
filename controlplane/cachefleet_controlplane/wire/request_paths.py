"""Paths of requests: as they are meant, and which one a client missed by its base URL. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from cachefleet_controlplane.wire.errors import ANTHROPIC_PATH, MAX_SHOWN, ApiError, shown

VERSION: Final = "/v1"
ALIKE: Final = 0.85
"""How much of two paths is the same, from 0 to 1, where one counts as the other misspelt."""
UNKNOWN_URL: Final = "unknown_url"
"""OpenAI's code for a path that is not there."""


ALIASES: Final = MappingProxyType(
    {
        **dict.fromkeys(("/rerank", "/v2/rerank"), "/v1/rerank"),
        "/score": "/v1/score",
        **{VERSION + path: path for path in ("/classify", "/pooling", "/tokenize", "/detokenize")},
    }
)
"""Other paths of what is at one path here: vLLM's own, Cohere's, and those of clients with one base URL for all."""
UNSERVED: Final = MappingProxyType(
    {
        "/v1/realtime": "Realtime sessions are not served: responses are, over HTTP and WebSocket (/v1/responses)",
        "/v1/audio": "Speech is not made here: it is read by /v1/audio/transcriptions and /v1/audio/translations",
        "/v1/images": "Images are not made here",
        "/v1/videos": "Videos are not made here",
        "/v1/batches": "Batches are not served: CACHEFLEET_BATCHES is off",
        "/v1/files": "Files are kept for batches alone (CACHEFLEET_BATCHES is off): a chat takes media as data URLs",
        "/v1/moderations": "Moderations are not served: a model that was trained for it has /classify",
        "/v1/assistants": "Assistants are not served: /v1/responses keeps conversations",
        "/v1/threads": "Threads are not served: /v1/responses keeps conversations",
        **dict.fromkeys(
            ("/api/chat", "/api/generate", "/api/tags"), "Ollama's API is not served: OpenAI's is, below /v1"
        ),
        **dict.fromkeys(
            ("/metrics", "/healthz", "/readyz", "/admin", "/console"),
            "It is on the control plane's internal port (8081)",
        ),
        "/reset_prefix_cache": "Operators flush caches by the internal port: `cachefleet flush`",
    }
)
"""What clients of these APIs look for and do not find here, by the beginning of its path."""


def plain_path(path: str) -> str:
    """Return a path without doubled and trailing slashes, as clients make them of a base URL that ends with one, and
    under the name that it has here.
    """
    if "//" in path or (path.endswith("/") and len(path) > 1):
        path = "/" + "/".join(part for part in path.split("/") if part)
    return ALIASES.get(path, path)


def meant_path(path: str, known: Iterable[str]) -> str:
    """Return the longest of the paths ``known`` whose end, ``/v1`` apart, ends ``path``, too, else one that is written
    almost like it (``/v1/completion``); "" for none.
    """
    asked = path[-MAX_SHOWN:]
    ends = [one for one in known if asked.endswith(one.removeprefix(VERSION))]
    return max(ends, key=len, default="") or _almost(asked, known)


def _almost(asked: str, known: Iterable[str]) -> str:
    return "" if _unserved(asked) else next(iter(get_close_matches(asked, list(known), n=1, cutoff=ALIKE)), "")


def _unserved(path: str) -> str:
    """Why what is at that path elsewhere is not here; "" for a path of which that is not known."""
    return next((words for start, words in UNSERVED.items() if f"{path}/".startswith(f"{start}/")), "")


def no_such_path(path: str, meant: str) -> ApiError:
    """Return the ApiError 404 for a path; ``meant`` is the one to use, "" where none is like it."""
    message = f"There is no {shown(path)} here." if path else "The request names no path."
    if unserved := _unserved(path):
        message += f" {unserved}."
    elif meant and not path.endswith(meant.removeprefix(VERSION)):
        message += f" Did you mean {meant}?"
    elif meant.startswith(ANTHROPIC_PATH):
        message += f" Use {meant}: set the base URL to this gateway's address without `{VERSION}`, which clients add."
    elif meant:
        message += f" Use {meant}: set the base URL to this gateway's address with `{VERSION}`, once (`.../v1`)."
    return ApiError(404, message, code=UNKNOWN_URL)
