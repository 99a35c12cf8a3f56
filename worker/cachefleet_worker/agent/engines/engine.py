"""What the agent asks of an inference engine; an engine's own folder implements it.

Every method raises EngineError where the engine does not answer as expected, EngineUnreachableError where nothing
listens at its address, and EngineRefusalError where it refuses the request itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from cachefleet_core.report_frames import Policy
from cachefleet_core.warmth import Prefix
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.engine_facts import EngineFacts
from cachefleet_worker.agent.engines.engine_poll import EnginePoll
from cachefleet_worker.agent.engines.prompt_run import PromptRun


class EventSource(Protocol):
    """The block events of one rank."""

    async def run(self) -> None:
        """Keep the held blocks equal to the rank's, or a subset of them, until cancelled."""
        ...


class EngineProcess(Protocol):
    """One process of an engine, from the moment at which it serves."""

    @property
    def facts(self) -> EngineFacts:
        """What identifies it."""
        ...

    async def poll(self) -> EnginePoll:
        """Its load and its state now."""
        ...

    def event_source(
        self, rank: int, residents: Residents, *, changed: Callable[[], None], restarted: Callable[[str], None]
    ) -> EventSource | None:
        """Follows a rank's block events into ``residents``; None where the rank publishes none.

        ``changed`` is to be called when the held blocks have changed, ``restarted`` with the reason when another
        process may be behind the events: after that the source does nothing more.
        """
        ...


class PolicyControl(Protocol):
    """Calls that put a pool's policy into force; made only where ``EngineFacts.takes_policy``."""

    async def put_policy(self, policy: Policy) -> Mapping[int, int]:
        """Give the engine a policy; returns the generation then in force at each rank."""
        ...

    async def hand_back(self) -> int:
        """Have the engine give back the answers that other workers can go on with; returns how many."""
        ...

    async def end_conversations(self) -> int:
        """End every conversation that the engine keeps; returns their turns."""
        ...


class PromptRunner(Protocol):
    """Runs prompts for their cache. ValueError where a prefix is no prompt."""

    async def cache_prompt(
        self, model: str, prefix: Prefix, *, again: bool, timeout_seconds: float, rank: int | None
    ) -> PromptRun:
        """Run a prompt for one token, at one rank where there are several.

        ``again``: blocks that are cached already are announced once more.
        """
        ...

    async def count_tokens(self, model: str, prefix: Prefix) -> int:
        """The prompt's tokens, also where they are too many; EngineError where the engine does not count them."""
        ...


class AdapterControl(Protocol):
    """Adapters (LoRA) of a running engine. The text of an EngineError is what the engine says, in one line."""

    async def served(self) -> Mapping[str, str]:
        """The adapters served now, as ``EngineFacts.adapters``."""
        ...

    async def load(self, name: str, path: str) -> None:
        """Load an adapter under a name that no other has."""
        ...

    async def unload(self, name: str) -> None:
        """Serve an adapter no longer; one that is not served is no error."""
        ...


class Engine(Protocol):
    """One inference engine, over restarts of its process."""

    async def connect(self) -> EngineProcess:
        """The process there is now. EngineError until it serves."""
        ...

    @property
    def policies(self) -> PolicyControl:
        """Puts a policy into force."""
        ...

    @property
    def prompts(self) -> PromptRunner:
        """Caches prompts."""
        ...

    @property
    def adapters(self) -> AdapterControl:
        """Loads and unloads adapters."""
        ...
