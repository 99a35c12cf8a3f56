"""The official clients, unchanged, through the gateway, over real sockets."""

from collections.abc import AsyncIterator

import pytest

from tests.controlplane.gateway.apis.client_scenarios import GENERATING, POOLING, names
from tests.controlplane.gateway.apis.client_setup import Clients, Scenario, clients
from tests.controlplane.gateway.harness import MODEL, engine, front

SCENARIOS = [*GENERATING, *POOLING]


@pytest.fixture
async def ours() -> AsyncIterator[Clients]:
    options = {"multibyte": True, "pooling": True}
    async with engine(**options) as one, engine(**options) as two, front([one, two]) as gate:
        made = clients(gate.url, model=MODEL)
        async with made.openai, made.anthropic:
            yield made


@pytest.mark.timeout(120)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=names(SCENARIOS))
async def test_client(ours: Clients, scenario: Scenario) -> None:
    await scenario(ours)
