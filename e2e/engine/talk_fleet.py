"""A fleet whose conversations go by handle, and what is asked of it besides answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from e2e.engine.fleet import READY_SECONDS, Up, running_up, until
from e2e.engine.talk_client import Body, Said, ask

BY_HANDLE: Final = "endpoint_local_shortcut_hit"
POOL: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {{name: talk}}
spec:
  model: {{name: tiny, source: cachefleet/tiny, weightsMiB: 2, kvBytesPerToken: 512}}
  replicas: {replicas}
  engine:
    maxModelLen: 8192
    dtype: float32
    extraArgs: [--trust-request-chat-template, --enable-auto-tool-choice, --tool-call-parser=hermes]
  device: {{resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: 480}}
  prefixCache: {{budgetMiB: 16}}
  continuation: {{enabled: true, handles: true}}
"""
_FEW_CHATS: Final = {"CACHEFLEET_CONTINUATION_CERTIFY_CHATS": "4"}


@contextmanager
def talk_fleet(folder: Path, *, replicas: int, environment: Mapping[str, str] | None = None) -> Iterator[Up]:
    """From when its profile is certified, so that handles are used."""
    pool = folder / "pool.yaml"
    pool.write_text(POOL.format(replicas=replicas))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (_FEW_CHATS | dict(environment or {})).items():
            patch.setenv(name, value)
        with running_up(pool, folder) as up:
            until(lambda: up.live(replicas), READY_SECONDS, "whole")
            until(lambda: any(one["certified"] for one in up.admin("certificates")), READY_SECONDS, "certified", up)
            yield up


async def outcome(http: aiohttp.ClientSession, fleet: Up, said: Said) -> str:
    """How a turn was continued; "" where the control plane that knew it is dead."""
    token = (fleet.data_dir / "secrets" / "admin.token").read_text().strip()
    url = f"{fleet.internal}/admin/v1/decisions/{said.decision}"
    with suppress(aiohttp.ClientError):
        async with http.get(url, headers={"authorization": f"Bearer {token}"}) as answer:
            if answer.status == 200:
                return str((await answer.json())["continuation"])
    return ""


class Reference:
    """A worker itself, which is given no handles."""

    def __init__(self, http: aiohttp.ClientSession, fleet: Up) -> None:
        self._http = http
        self._url = str(fleet.workers()[0]["url"])
        key = (fleet.data_dir / "secrets" / "default_talk.worker-key").read_text().strip()
        self._headers = {"authorization": f"Bearer {key}"}
        self._asked = count()

    async def differing(self, body: Body, said: Said) -> list[Said]:
        """The worker's answers to the whole history, none where one of them is the same.

        It may have found some of it in its cache, or nothing: a sum in another order can turn a tie of two tokens.
        """
        answers = []
        for salt in ("reference", f"reference-{next(self._asked)}"):
            answers.append(await ask(self._http, self._url, body | {"cache_salt": salt}, self._headers))
            if said.same(answers[-1]):
                return []
        return answers
