"""The finish reason ``cache_threshold``, and streams that carry it without any token.

vLLM's finish reasons are a closed enum, sent between its processes as an integer. Every process that loads the plugin
adds one member to it and to the scheduler's statuses ("enum"). Where that does not pass vLLM's own encoder, the reason
is the text ``stop_reason`` of an ordinary stop ("stop_reason"); it is set in both modes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any, Final

from cachefleet_worker.plugin.capabilities import OFF, Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.settings import PluginSettings

REASON: Final = "cache_threshold"
MEMBER: Final = "CACHE_THRESHOLD"
STATUS: Final = "FINISHED_CACHE_THRESHOLD"


@dataclass(frozen=True, slots=True)
class Finish:
    """How a refused request finishes in this process."""

    reason: Any
    """A member of vLLM's FinishReason."""
    status: Any
    """A member of vLLM's RequestStatus."""
    streams: bool
    """Whether a stream without a token carries the reason."""


def install(capabilities: Capabilities, faults: Faults, settings: PluginSettings) -> Finish:
    """Add the reason to this process; the capabilities name what could not be added."""
    plain = plain_finish()
    reason, status = _enum_mode(capabilities, faults, settings) or (plain.reason, plain.status)
    return Finish(reason, status, streams=_streaming(capabilities, faults, settings, reason))


def plain_finish() -> Finish:
    """An ordinary stop, which any vLLM process knows."""
    reason, status = _engine().FinishReason.STOP, _request().RequestStatus.FINISHED_STOPPED
    return Finish(reason, status, streams=False)


def _enum_mode(capabilities: Capabilities, faults: Faults, settings: PluginSettings) -> tuple[Any, Any] | None:
    if off := settings.switched_off("finish_reason"):
        capabilities.add("finish_reason", "stop_reason", off)
        return None
    found = _tried(faults)
    if found is None:
        with faults.guard("finish_reason"):
            remove_reason()
        capabilities.add("finish_reason", "stop_reason", "the enum's new member does not come through vLLM's encoder")
        return None
    capabilities.add("finish_reason", "enum")
    return found


def _tried(faults: Faults) -> tuple[Any, Any] | None:
    tried: list[tuple[Any, Any]] = []
    with faults.guard("finish_reason"):
        added = add_reason()
        check_round_trip(added[0])
        tried.append(added)
    return tried[0] if tried else None


def add_reason() -> tuple[Any, Any]:
    """The enum's member for the reason and the status that maps to it, added where they are missing."""
    engine, request = _engine(), _request()
    reason = _add_member(engine.FinishReason, MEMBER)
    if len(engine.FINISH_REASON_STRINGS) <= reason.value:
        engine.FINISH_REASON_STRINGS = (*engine.FINISH_REASON_STRINGS, REASON)
    status = _add_member(request.RequestStatus, STATUS)
    request._FINISHED_REASON_MAP[status] = reason  # noqa: SLF001 - vLLM has no public way
    return reason, status


def remove_reason() -> None:
    """Undo ``add_reason``, as far as it came."""
    engine, request = _engine(), _request()
    engine.FINISH_REASON_STRINGS = tuple(text for text in engine.FINISH_REASON_STRINGS if text != REASON)
    for enum, name in ((engine.FinishReason, MEMBER), (request.RequestStatus, STATUS)):
        member = enum._member_map_.pop(name, None)
        if member is not None:
            request._FINISHED_REASON_MAP.pop(member, None)  # noqa: SLF001
            enum._member_names_.remove(name)
            enum._value2member_map_.pop(member.value, None)
            type.__delattr__(enum, name)
            _forget_layout(enum)


def check_round_trip(reason: Any) -> None:
    """Send the reason through vLLM's encoder and decoder. ValueError where it does not come back."""
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs  # noqa: PLC0415
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder  # noqa: PLC0415

    sent = EngineCoreOutputs(outputs=[EngineCoreOutput(request_id="test", new_token_ids=[], finish_reason=reason)])
    came = MsgpackDecoder(EngineCoreOutputs).decode(MsgpackEncoder().encode(sent)).outputs[0]
    if came.finish_reason != reason or str(came.finish_reason) != REASON or not came.finished:
        raise ValueError(f"{REASON} came back as {came.finish_reason!r}")


def _engine() -> Any:
    return import_module("vllm.v1.engine")


def _request() -> Any:
    return import_module("vllm.v1.request")


def _add_member(enum: Any, name: str) -> Any:
    if name in enum.__members__:
        return enum.__members__[name]
    value = max(enum) + 1
    member = int.__new__(enum, value)
    member._name_, member._value_ = name, value
    member._sort_order_ = len(enum._member_names_)
    enum._member_map_[name] = member
    enum._value2member_map_[value] = member
    enum._member_names_.append(name)
    type.__setattr__(enum, name, member)
    _forget_layout(enum)
    return member


def _forget_layout(enum: Any) -> None:
    """Drop msgspec's cache of an enum's members, which it keeps on the class."""
    if "__msgspec_cache__" in enum.__dict__:
        type.__delattr__(enum, "__msgspec_cache__")


# Streaming: vLLM does not send a first chunk without text and tokens, even where it is also the last one.


class WorthAChunk(list[int]):
    """An empty list that is true, so that vLLM streams a chunk that holds only a finish reason."""

    def __bool__(self) -> bool:
        return True


def _streaming(capabilities: Capabilities, faults: Faults, settings: PluginSettings, reason: Any) -> bool:
    if off := settings.switched_off("streaming"):
        capabilities.add("streaming", OFF, off)
        return False
    with faults.guard("streaming"):
        patch_streams()
        check_stream(reason)
        capabilities.add("streaming", "patched")
    return faults.on("streaming")


def patch_streams() -> None:
    """Make vLLM's output processor mark a refused stream's chunk. Idempotent."""
    state = _request_state()
    original = state._new_completion_output  # noqa: SLF001 - vLLM has no public hook
    if hasattr(original, "cachefleet"):
        return

    @wraps(original)
    def completion_output(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        if output.stop_reason == REASON and not output.token_ids:
            output.token_ids = WorthAChunk()
            if output.logprobs:
                output.logprobs = output.logprobs[:0]  # some versions repeat all of them here
        return output

    completion_output.cachefleet = True  # type: ignore[attr-defined]
    state._new_completion_output = completion_output  # noqa: SLF001


def check_stream(reason: Any) -> None:
    """Have the output processor make a refused stream's chunk. ValueError where it is not marked."""
    output = _probe()._new_completion_output([], reason, REASON)  # noqa: SLF001
    if not output.token_ids or len(output.token_ids) or output.finish_reason != str(reason):
        raise ValueError(f"a refused stream's chunk is {output!r}")


def _request_state() -> Any:
    return import_module("vllm.v1.engine.output_processor").RequestState


def _probe() -> Any:
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

    class Nothing:
        """Detokenizer and log-probabilities of a request without tokens."""

        output_token_ids: tuple[int, ...] = ()
        logprobs: Any = None
        cumulative_logprob: Any = None

        def get_next_output_text(self, *_: object) -> str:
            return ""

        def num_output_tokens(self) -> int:
            return 0

    class Probe(_request_state()):  # type: ignore[misc]
        def __init__(self) -> None:
            self.output_kind = RequestOutputKind.DELTA
            self.detokenizer = self.logprobs_processor = Nothing()
            self.request_index = 0

        def __getattr__(self, name: str) -> Any:
            return [] if not name.startswith("__") else None

    return Probe()
