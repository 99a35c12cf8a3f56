"""JSON Schemas of the gateway's OpenAPI document: request bodies, answers and errors. Pure.

Members that are not named are passed to the worker as they are, so no body forbids any; answers are the worker's,
and only the members that clients rely on are named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cachefleet_native import MAX_CHOICES, MAX_INPUTS, MAX_SEQUENCES

from cachefleet_controlplane.gateway.apis.audio_form import MAX_FIELD_BYTES, MAX_PARTS
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.prompt_causes.prompt_lint import LintSeverity
from cachefleet_controlplane.routing.decision import Knowledge, Verdict
from cachefleet_core.continuation import APPEND_MEMBER, REF_MEMBER, RETURN_MEMBER, PromptCacheRef

Schema = dict[str, Any]

ANY: Final[Schema] = {}
TEXT: Final[Schema] = {"type": "string"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
POSITIVE: Final[Schema] = {"type": "integer", "minimum": 1}
FLAG: Final[Schema] = {"type": "boolean"}
ITEMS: Final[Schema] = {"type": "array", "items": {"type": "object"}}
RATIO: Final[Schema] = {"type": "number", "minimum": 0, "maximum": 1}
TOKEN: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}


def ref(name: str) -> Schema:
    """Return a reference to a schema of this document."""
    return {"$ref": f"#/components/schemas/{name}"}


def optional(schema: Schema) -> Schema:
    """Return the schema that allows null as well."""
    return {"anyOf": [schema, {"type": "null"}]}


def object_of(properties: Mapping[str, Schema], *, required: tuple[str, ...] = (), about: str = "") -> Schema:
    """Return the schema of an object with these members, some of them required, and any others."""
    described = {"description": about} if about else {}
    return {"type": "object", "properties": dict(properties), "required": list(required), **described}


def array_of(schema: Schema) -> Schema:
    """Return the schema of a list whose items all have ``schema``."""
    return {"type": "array", "items": schema}


def _prompts(most: int) -> Schema:
    """Return the schema of a prompt as text or ids, or of so many."""
    several = {"maxItems": most}
    return {"anyOf": [TEXT, array_of(TEXT) | several, array_of(TOKEN), array_of(array_of(TOKEN)) | several]}


def listed(**members: Schema) -> Schema:
    """Return the schema of an object in which each member named is required."""
    return object_of(members, required=tuple(members))


_MODEL: Final = TEXT | {
    "description": "Name of a pool's model or adapter, or namespace/name; may be left out where there is one model."
}
_THRESHOLD: Final = RATIO | {
    "description": "Refuse where the worker's cache holds a smaller part of the prompt; 0 always runs."
}
_CHOICES: Final = optional({"type": "integer", "minimum": 1, "maximum": MAX_CHOICES})
_SAMPLING: Final[Mapping[str, Schema]] = {
    "model": _MODEL,
    "max_tokens": optional(POSITIVE),
    "stream": optional(FLAG),
    "temperature": optional({"type": "number", "minimum": 0, "maximum": 2}),
    "n": _CHOICES,
    "best_of": _CHOICES,
    "stop": optional({"anyOf": [TEXT, array_of(TEXT)]}),
    "stream_options": optional(object_of({"include_usage": FLAG})),
    "return_token_ids": optional(FLAG),
    "cache_hit_threshold": _THRESHOLD,
}
_REFERRED: Final = PromptCacheRef.__struct_fields__
_MESSAGE: Final = object_of(
    {"role": TEXT | {"enum": ["system", "user", "assistant", "tool"]}, "content": optional({"anyOf": [TEXT, ITEMS]})},
    required=("role",),
)
_TURN: Final = object_of(
    {"role": TEXT | {"enum": ["user", "assistant"]}, "content": {"anyOf": [TEXT, ITEMS]}}, required=("role", "content")
)

_SCORED: Final[Schema] = {"anyOf": [TEXT, {"type": "object"}]}
_SEVERAL_SCORED: Final[Schema] = {"anyOf": [_SCORED, array_of(_SCORED) | {"maxItems": MAX_INPUTS}]}
_REFERENCE: Final = object_of(dict.fromkeys(_REFERRED, TEXT) | {"prefix_token_count": POSITIVE}, required=_REFERRED)

REQUESTS: Final[Mapping[str, Schema]] = {
    "ChatRequest": object_of(
        {**_SAMPLING, "messages": array_of(_MESSAGE), "max_completion_tokens": optional(POSITIVE)},
        required=("messages",),
        about="OpenAI's chat completion, with vLLM's members.",
    ),
    "CompletionRequest": object_of(
        {
            **_SAMPLING,
            "prompt": _prompts(MAX_SEQUENCES),
            REF_MEMBER: _REFERENCE,
            APPEND_MEMBER: array_of(TOKEN),
            RETURN_MEMBER: optional(FLAG),
        },
        about="OpenAI's completion; a prompt is text or token ids, or several of one kind; or token ids by reference. "
        f"Choices of all prompts are {MAX_SEQUENCES} at most.",
    ),
    "ResponseRequest": object_of(
        {
            "model": _MODEL,
            "input": {"anyOf": [TEXT, ITEMS]},
            "instructions": optional(TEXT),
            "max_output_tokens": optional(POSITIVE),
            "stream": optional(FLAG),
            "previous_response_id": optional(TEXT),
        },
        required=("input",),
        about="OpenAI's response.",
    ),
    "MessageRequest": object_of(
        {
            "model": TEXT,
            "messages": array_of(_TURN),
            "max_tokens": POSITIVE,
            "system": {"anyOf": [TEXT, ITEMS]},
            "stream": optional(FLAG),
        },
        required=("model", "messages", "max_tokens"),
        about="Anthropic's message.",
    ),
    "CountRequest": object_of(
        {"model": TEXT, "messages": array_of(_TURN), "system": {"anyOf": [TEXT, ITEMS]}},
        required=("model", "messages"),
        about="Anthropic's count of tokens.",
    ),
    "EmbeddingRequest": object_of(
        {
            "model": _MODEL,
            "input": _prompts(MAX_INPUTS),
            "encoding_format": optional(TEXT | {"enum": ["float", "base64"]}),
        },
        required=("input",),
        about="OpenAI's embeddings.",
    ),
    "RerankRequest": object_of(
        {"model": _MODEL, "query": _SCORED, "documents": _SEVERAL_SCORED, "top_n": COUNT},
        required=("query", "documents"),
        about="Documents to be put in order by how well they answer a query.",
    ),
    "ScoreRequest": object_of(
        {"model": _MODEL, "queries": _SEVERAL_SCORED, "documents": _SEVERAL_SCORED},
        about="Pairs to be scored: one with each of the others, or one by one; vLLM's other names for both go, too.",
    ),
    "PoolingRequest": object_of(
        {"model": _MODEL, "input": _prompts(MAX_INPUTS), "messages": array_of(_MESSAGE)},
        about="vLLM's classes or states of texts, or of a conversation.",
    ),
    "TokenizeRequest": object_of(
        {"model": _MODEL, "prompt": TEXT, "messages": array_of(_MESSAGE), "return_token_strs": optional(FLAG)},
        about="A text, or a conversation as the model's template renders it.",
    ),
    "DetokenizeRequest": object_of(
        {"model": _MODEL, "tokens": array_of(TOKEN)}, required=("tokens",), about="Token ids of a text."
    ),
    "SpeechRequest": object_of(
        {
            "file": {"type": "string", "format": "binary", "description": "The recording, with a file name."},
            "model": _MODEL,
            "language": TEXT,
            "prompt": TEXT | {"maxLength": MAX_FIELD_BYTES // 4},
            "response_format": TEXT | {"enum": ["json", "text", "verbose_json"]},
            "temperature": {"type": "number", "minimum": 0, "maximum": 1},
            "stream": FLAG,
            "stream_include_usage": FLAG,
        },
        required=("file",),
        about=f"OpenAI's form for speech, with vLLM's fields; of {MAX_PARTS} parts at most.",
    ),
    "RouteRequest": object_of(
        {
            "endpoint": TEXT | {"enum": [str(endpoint) for endpoint in Endpoint]},
            "model": _MODEL,
            "messages": array_of(_MESSAGE),
            "prompt": {"anyOf": [TEXT, array_of(TOKEN)]},
            "input": {"anyOf": [TEXT, ITEMS]},
            "lint": FLAG,
        },
        about="Any of the other bodies; `endpoint` names the path where the body does not tell; `lint` asks what of "
        "the prompt will not be cached.",
    ),
}

_USAGE: Final = object_of(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": optional(COUNT),
        "total_tokens": COUNT,
        "prompt_tokens_details": optional(object_of({"cached_tokens": optional(COUNT)})),
    },
    required=("prompt_tokens",),
)
_CHOICE: Final = object_of({"index": COUNT, "finish_reason": optional(TEXT)}, required=("index", "finish_reason"))


def _generated(kind: str) -> Schema:
    return listed(
        id=TEXT, object={"const": kind}, created=COUNT, model=TEXT, choices=array_of(_CHOICE), usage=optional(_USAGE)
    )


ANSWERS: Final[Mapping[str, Schema]] = {
    "Chat": _generated("chat.completion"),
    "Completion": _generated("text_completion"),
    "Response": listed(id=TEXT, object={"const": "response"}, status=TEXT, model=TEXT, output=ITEMS),
    "DeletedResponse": listed(id=TEXT, deleted=FLAG),
    "InputItems": listed(
        object={"const": "list"}, data=ITEMS, has_more=FLAG, first_id=optional(TEXT), last_id=optional(TEXT)
    ),
    "InputTokens": listed(object={"const": "response.input_tokens"}, input_tokens=COUNT),
    "Message": listed(
        id=TEXT,
        type={"const": "message"},
        role=TEXT,
        content=ITEMS,
        stop_reason=optional(TEXT),
        usage={"type": "object"},
    ),
    "TokenCount": listed(input_tokens=COUNT),
    "Embeddings": listed(object={"const": "list"}, data=ITEMS, model=TEXT, usage=_USAGE),
    "Ranks": listed(id=TEXT, model=TEXT, results=ITEMS, usage=_USAGE),
    "Heard": listed(text=TEXT),
    "Tokens": listed(count=COUNT, max_model_len=COUNT, tokens=array_of(TOKEN)),
    "Text": listed(prompt=TEXT),
    "Model": listed(
        id=TEXT,
        object={"const": "model"},
        created=COUNT,
        owned_by=TEXT,
        max_model_len=optional(COUNT),
        context_window=optional(COUNT),
        max_output_tokens=optional(COUNT),
        capabilities=listed(
            endpoints=array_of(TEXT),
            prefix_caching=FLAG,
            cache_hit_threshold=FLAG,
            hand_back=FLAG,
            workers=COUNT,
        ),
    ),
    "Health": listed(status={"const": "ok"}),
    "Version": listed(version=TEXT),
    "Models": listed(object={"const": "list"}, data=array_of(ref("Model"))),
    "Lint": listed(
        prompt_tokens=COUNT,
        block_size=POSITIVE,
        exact=FLAG,
        compared=FLAG,
        findings=array_of(
            listed(
                severity={"enum": [str(severity) for severity in LintSeverity]},
                cause=TEXT,
                compared=FLAG,
                part=TEXT,
                role=TEXT,
                index=COUNT,
                character=optional(COUNT),
                position=COUNT,
                tokens=COUNT,
                why=TEXT,
                mend=TEXT,
            )
        ),
    ),
    "Decision": listed(
        id=TEXT,
        object={"const": "cachefleet.decision"},
        model=TEXT,
        endpoint=TEXT,
        verdict={"enum": [str(verdict) for verdict in Verdict]},
        reason=TEXT,
        policy=TEXT,
        knowledge={"enum": [str(knowledge) for knowledge in Knowledge]},
        rendered_by=TEXT,
        render_failure=optional(TEXT),
        worker=optional(TEXT),
        pool=optional(TEXT),
        prompt_tokens=COUNT,
        predicted_tokens=COUNT,
        candidates=ITEMS,
    )
    | {"description": "With `lint`, as a schema of that name, where the request asks for it."},
}

ERRORS: Final[Mapping[str, Schema]] = {
    "Error": listed(
        error=object_of(
            {
                "message": TEXT,
                "type": TEXT,
                "param": optional(TEXT),
                "code": TEXT,
            },
            required=("message", "type", "param", "code"),
        )
    )
    | {"description": "An error in OpenAI's shape; `code` is the status as text, or a word that says more."},
    "AnthropicError": listed(type={"const": "error"}, error=listed(type=TEXT, message=TEXT))
    | {"description": "An error in Anthropic's shape."},
}
