"""Responses, models and embeddings by the official client, and its errors."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.resources.responses.responses import AsyncResponsesConnection
from openai.types.responses import Response

from tests.controlplane.gateway.apis.client_setup import MANY, RESPONSE_TOOLS, TOOL_NAME, USER, Clients, Reading


async def responses_whole(ours: Clients) -> None:
    done = await ours.openai.responses.create(
        model=ours.model, instructions="You are terse.", input="hello there", max_output_tokens=4
    )
    assert done.status in {"completed", "incomplete"}
    assert isinstance(done.output_text, str)
    assert done.usage is not None
    assert done.usage.input_tokens > 0
    assert done.usage.input_tokens_details.cached_tokens >= 0
    turns: list[Any] = [{"role": "user", "content": "hello there"}, *(one.model_dump() for one in done.output)]
    turns.append({"role": "user", "content": "and now?"})
    again = await ours.openai.responses.create(model=ours.model, input=turns, max_output_tokens=2)
    assert again.usage is not None
    assert again.usage.input_tokens > done.usage.input_tokens


async def responses_stream(ours: Clients) -> None:
    stream = await ours.openai.responses.create(model=ours.model, input="hello there", max_output_tokens=4, stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.usage is not None
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text


async def responses_tool(ours: Clients) -> None:
    choice: Any = {"type": "function", "name": TOOL_NAME}
    done = await ours.openai.responses.create(
        model=ours.model, input="hello", tools=RESPONSE_TOOLS, tool_choice=choice, max_output_tokens=MANY
    )
    (call,) = [item for item in done.output if item.type == "function_call"]
    Reading.model_validate_json(call.arguments)
    stream = await ours.openai.responses.create(
        model=ours.model, input="hello", tools=RESPONSE_TOOLS, tool_choice=choice, max_output_tokens=MANY, stream=True
    )
    events = [event async for event in stream]
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    Reading.model_validate_json(arguments)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "21"}
    turns: list[Any] = [{"role": "user", "content": "hello"}, call.model_dump(exclude_none=True), result]
    again = await ours.openai.responses.create(model=ours.model, input=turns, max_output_tokens=3)
    assert again.usage is not None


async def responses_structured(ours: Clients) -> None:
    done = await ours.openai.responses.parse(
        model=ours.model, input="hello", text_format=Reading, max_output_tokens=MANY
    )
    assert isinstance(done.output_parsed, Reading)


async def responses_are_not_stored(ours: Clients) -> None:
    done = await ours.openai.responses.create(model=ours.model, input="hello", max_output_tokens=2, store=True)
    for refused in (
        ours.openai.responses.retrieve(done.id),
        ours.openai.responses.cancel(done.id),
        ours.openai.responses.delete(done.id),
        ours.openai.responses.create(model=ours.model, input="x", previous_response_id=done.id),
        ours.openai.responses.create(model=ours.model, input="x", background=True),
    ):
        with pytest.raises(openai.BadRequestError, match="not stored"):
            await refused


async def responses_over_a_websocket(ours: Clients) -> None:
    """Three turns, each with its new input alone; the answers are those of the whole conversation by POST."""
    turns: list[Any] = []
    previous: Any = openai.omit
    async with ours.openai.responses.connect() as connection:
        for text in ("Tell me what is in the first box. " * 8, "And in the second one?", "Who put it there?"):
            new: list[Any] = [{"role": "user", "content": text}]
            asked: Any = {"model": ours.model, "max_output_tokens": 6, "temperature": 0, "store": False}
            await connection.response.create(input=new, previous_response_id=previous, **asked)
            done = await _socket_response(connection)
            turns += new
            whole = await ours.openai.responses.create(input=turns, **asked)
            assert (done.output_text, done.previous_response_id) == (whole.output_text, previous or None)
            assert done.usage is not None
            assert whole.usage is not None
            assert done.usage.input_tokens == whole.usage.input_tokens
            turns += [item.model_dump(exclude_none=True) for item in done.output]
            previous = done.id
        await connection.response.create(model=ours.model, input="x", previous_response_id="resp_nobody")
        refused = await connection.recv()
        assert refused.type == "error"
        assert (refused.status, refused.error.code) == (400, "previous_response_not_found")
        await connection.response.create(input=turns, **asked)
        assert (await _socket_response(connection)).output


async def responses_warmed_up(ours: Clients) -> None:
    """Instructions alone are computed ahead; the answer to what follows is that of both at once."""
    asked: Any = {"model": ours.model, "instructions": "Be brief, and of good cheer. " * 12, "temperature": 0}
    async with ours.openai.responses.connect() as connection:
        await connection.response.create(input=[], generate=False, **asked)
        warm = await _socket_response(connection)
        assert (warm.status, warm.output) == ("completed", [])
        await connection.response.create(input="hello", previous_response_id=warm.id, max_output_tokens=4, **asked)
        done = await _socket_response(connection)
    whole = await ours.openai.responses.create(input="hello", max_output_tokens=4, **asked)
    assert (done.output_text, done.previous_response_id) == (whole.output_text, warm.id)


async def _socket_response(connection: AsyncResponsesConnection) -> Response:
    """The response of the answer under way, whose text is what its events said."""
    said, numbers = "", []
    async for event in connection:
        assert event.type != "error", event
        numbers.append(getattr(event, "sequence_number", None))
        said += event.delta if event.type == "response.output_text.delta" else ""
        if event.type in {"response.completed", "response.incomplete"}:
            assert numbers == list(range(len(numbers)))
            assert event.response.output_text == said
            return event.response
    raise AssertionError("the connection has ended")


async def models(ours: Clients) -> None:
    listed = [model async for model in ours.openai.models.list()]
    assert ours.model in {model.id for model in listed}
    one = await ours.openai.models.retrieve(ours.model)
    capabilities = (one.model_extra or {})["capabilities"]
    assert "/v1/chat/completions" in capabilities["endpoints"]
    assert capabilities["prefix_caching"] is True


async def openai_errors(ours: Clients) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await ours.openai.chat.completions.create(model="nobody's", messages=USER)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await ours.openai.models.retrieve("nobody's")
    with pytest.raises(openai.BadRequestError) as caught:
        await ours.openai.chat.completions.create(model=ours.model, messages=USER, temperature=-1)
    assert caught.value.type == "invalid_request_error"


async def embeddings(ours: Clients) -> None:
    """For a pooling model; the client asks for base64 by itself."""
    done = await ours.openai.embeddings.create(model=ours.model, input=["one", "two"])
    assert [one.index for one in done.data] == [0, 1]
    assert all(isinstance(number, float) for number in done.data[0].embedding)
    assert done.usage.prompt_tokens > 0
    plain = await ours.openai.embeddings.create(model=ours.model, input="one", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(done.data[0].embedding, rel=1e-3, abs=1e-3)
