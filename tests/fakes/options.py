"""How a fake engine is set up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Names and defaults follow vLLM's where it has them.

    ``num_blocks`` includes the null block. Times are in seconds; with ``prefill_tokens_per_second`` 0 and
    ``inter_token_seconds`` 0 work costs no time. ``natural_tokens`` is the length of an answer that nothing else
    ends. Ports of 0 are chosen once and kept over restarts.
    """

    model: str = "fake"
    root: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    events_port: int = 0
    replay_port: int = 0
    api_key: str = ""
    num_blocks: int = 512
    block_size: int = 16
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_batched_tokens: int = 2048
    lookahead: int = 0
    """Tokens after a block that its hash covers: of 0.33 and later, with a draft model."""
    prefix_caching: bool = True
    prefill_tokens_per_second: float = 0.0
    inter_token_seconds: float = 0.0
    natural_tokens: int = 64
    multibyte: bool = False
    """Answers contain characters of several tokens (the byte tokenizer only)."""
    tokenizer: Path | None = None
    events: bool = True
    event_maps: bool = True
    event_int_hashes: bool = True
    buffer_steps: int = 10_000
    topic: str = ""
    rank: int = 0
    scale_out: bool = True
    """Serve the render and generate routes, as ``--enable-scale-out`` does."""
    pooling: bool = False
    """Serve embeddings, as a pooling model does; beside the routes that generate, for simplicity."""
    speech: bool = False
    """Serve transcriptions and translations, as a speech model does; beside the others, for simplicity."""
    plugin: bool = False
    """Serve cachefleet's ``/v1/fleet``: capabilities, stats, policy with the budget on idle blocks, keys."""
    unrecorded: bool = False
    """Its plugin records no streams."""
    index_key: bytes = b""
    """Of 32 bytes; with it the plugin answers ``/v1/fleet/keys``."""
    worker_key: str = ""
    """What opens ``/v1/fleet``; the API key where empty."""
    block_bytes: int = 16_384
    connector: str = ""
    """``nixl``: prefill for others is answered with where its blocks are. A Decode worker takes them as computed."""
    threshold_hook: bool = False
    """Be made to refuse by ``gate.HOOK``, as llm-d's simulator."""
    adapters: tuple[tuple[str, str], ...] = ()
    """Names and paths of the adapters (LoRA) that it serves from its start."""
    loads_adapters: bool = False
    """Load them while it runs, as under VLLM_ALLOW_RUNTIME_LORA_UPDATING=1."""
    adapter_slots: int = 0
    """Its --max-loras, as its metric tells it; 0 where it serves none."""
    nan_metric: bool = False
    """Count corrupted requests, as under VLLM_COMPUTE_NANS_IN_LOGITS=1."""
    tls: Path | None = None
    """Folder of the certificate to serve TLS with; connections then end with their answer, so that each is new."""
    version: str = "0.32.0"
    remembered_requests: int = 10_000

    def __post_init__(self) -> None:
        if self.context > self.capacity:
            raise ValueError(f"max_model_len {self.context} needs more than the {self.num_blocks - 1} usable blocks")

    @property
    def capacity(self) -> int:
        """Tokens that the pool holds."""
        return (self.num_blocks - 1) * self.block_size

    @property
    def context(self) -> int:
        """The maximum model length in force."""
        return self.max_model_len or min(self.capacity, 32_768)
