"""Files and batches in the gateway's OpenAPI document, where they are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cachefleet_controlplane.gateway.batches import batch_routes
from cachefleet_controlplane.gateway.batches.batch_object import (
    ENDPOINTS,
    LATER,
    MAX_METADATA,
    MAX_METADATA_KEY,
    MAX_METADATA_VALUE,
    MAX_WINDOW_HOURS,
    WINDOW,
)
from cachefleet_controlplane.gateway.batches.batch_routes import BATCHES_PATH
from cachefleet_controlplane.gateway.batches.batch_status import BatchStatus
from cachefleet_controlplane.gateway.files import file_routes
from cachefleet_controlplane.gateway.files.file_object import FileStatus, Purpose
from cachefleet_controlplane.gateway.files.file_routes import FILES_PATH
from cachefleet_controlplane.gateway.files.list_query import ORDERS
from cachefleet_controlplane.gateway.files.upload import ANCHOR, CREATED, LEAST_SECONDS, MOST_SECONDS, SECONDS
from cachefleet_controlplane.gateway.openapi import BYTES, LOCAL, Chapter, Operation
from cachefleet_controlplane.gateway.openapi_schemas import (
    COUNT,
    FLAG,
    POSITIVE,
    TEXT,
    Schema,
    array_of,
    listed,
    object_of,
    optional,
    ref,
)

_FILE: Final = ("file_id",)
_BATCH: Final = ("batch_id",)
_HOURS: Final = {
    "pattern": "^[1-9][0-9]{0,2}h$",
    "description": f"`{WINDOW}`, or other hours from `1h` to `{MAX_WINDOW_HOURS}h`.",
}


def _page(most: int) -> Schema:
    return {"after": TEXT | {"description": "Id of the item before the page."}, "limit": POSITIVE | {"maximum": most}}


def _list_of(name: str) -> Schema:
    ends = {"first_id": optional(TEXT), "last_id": optional(TEXT)}
    return listed(object={"const": "list"}, data=array_of(ref(name)), has_more=FLAG, **ends)


_OPERATIONS: Final = (
    Operation(
        path=FILES_PATH,
        summary="Keep a file of requests",
        takes="FileForm",
        form=True,
        answer="File",
        decided=False,
        statuses=(*LOCAL, 408, 413),
    ),
    Operation(
        path=FILES_PATH,
        method="get",
        summary="A page of the files, newest first",
        answer="Files",
        decided=False,
        query={
            **_page(file_routes.PAGE),
            "order": TEXT | {"enum": list(ORDERS)},
            "purpose": TEXT | {"description": f"Only those of one: {', '.join(Purpose)}."},
        },
        statuses=LOCAL,
    ),
    *(
        Operation(
            path=f"{FILES_PATH}/{{file_id}}{below}",
            method=method,
            summary=summary,
            answer=answer,
            decided=False,
            parameters=_FILE,
            statuses=statuses,
        )
        for below, method, summary, answer, statuses in (
            ("", "get", "One file", "File", LOCAL),
            ("", "delete", "Delete a file, unless a batch that is not over reads it", "DeletedFile", (*LOCAL, 409)),
            ("/content", "get", "What is in a file", BYTES, LOCAL),
        )
    ),
    Operation(
        path=BATCHES_PATH,
        summary="Have the requests of a file answered on spare room",
        takes="BatchRequest",
        answer="Batch",
        decided=False,
        statuses=(*LOCAL, 408, 413, 415, 429),
    ),
    Operation(
        path=BATCHES_PATH,
        method="get",
        summary="A page of the batches, newest first",
        answer="Batches",
        decided=False,
        query=_page(batch_routes.MAX_PAGE),
        statuses=LOCAL,
    ),
    *(
        Operation(
            path=f"{BATCHES_PATH}/{{batch_id}}{below}",
            method=method,
            summary=summary,
            answer="Batch",
            decided=False,
            parameters=_BATCH,
            statuses=statuses,
        )
        for below, method, summary, statuses in (
            ("", "get", "One batch", LOCAL),
            ("/cancel", "post", "End a batch", (*LOCAL, 429)),
        )
    ),
)
_SCHEMAS: Final[Mapping[str, Schema]] = {
    "FileForm": object_of(
        {
            "file": {"type": "string", "format": "binary", "minLength": 1},
            "purpose": {"const": Purpose.BATCH.value},
            ANCHOR: {"const": CREATED},
            SECONDS: {"type": "integer", "minimum": LEAST_SECONDS, "maximum": MOST_SECONDS},
        },
        required=("file", "purpose"),
        about="OpenAI's form for a file: a request in each line.",
    ),
    "BatchRequest": object_of(
        {
            "input_file_id": TEXT,
            "endpoint": TEXT | {"enum": [str(endpoint) for endpoint in ENDPOINTS]},
            "completion_window": TEXT | _HOURS,
            "metadata": optional(
                {
                    "type": "object",
                    "maxProperties": MAX_METADATA,
                    "propertyNames": {"maxLength": MAX_METADATA_KEY},
                    "additionalProperties": TEXT | {"maxLength": MAX_METADATA_VALUE},
                }
            ),
        },
        required=("input_file_id", "endpoint", "completion_window"),
        about="OpenAI's batch.",
    ),
    "File": listed(
        id=TEXT,
        object={"const": "file"},
        bytes=COUNT,
        created_at=COUNT,
        expires_at=COUNT,
        filename=TEXT,
        purpose={"enum": [purpose.value for purpose in Purpose]},
        status={"const": FileStatus.PROCESSED.value},
        status_details={"type": "null"},
    ),
    "Files": _list_of("File"),
    "DeletedFile": listed(id=TEXT, object={"const": "file"}, deleted={"const": True}),
    "Batch": listed(
        id=TEXT,
        object={"const": "batch"},
        endpoint=TEXT,
        model=optional(TEXT),
        errors=optional(listed(object={"const": "list"}, data=array_of(ref("BatchError")))),
        input_file_id=TEXT,
        completion_window=TEXT,
        status={"enum": [status.value for status in BatchStatus]},
        output_file_id=optional(TEXT),
        error_file_id=optional(TEXT),
        created_at=COUNT,
        expires_at=COUNT,
        **{f"{status}_at": optional(COUNT) for status in LATER},
        request_counts=listed(total=COUNT, completed=COUNT, failed=COUNT),
        metadata=optional({"type": "object", "additionalProperties": TEXT}),
    ),
    "BatchError": listed(code=TEXT, message=TEXT, line=optional(POSITIVE), param=optional(TEXT)),
    "Batches": _list_of("Batch"),
}
BATCHES_CHAPTER: Final = Chapter(_OPERATIONS, _SCHEMAS)
"""``/v1/files`` and ``/v1/batches``."""
