"""The record of a file, as clients see it."""

from __future__ import annotations

import secrets
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from cachefleet_core.tenancy import TenantId

MIB: Final = 1024 * 1024
DAY: Final = 86_400
PART_BYTES: Final = 256 * 1024
"""Of a file's content in each part but the last, in the database."""
OBJECT_BYTES: Final = MIB
"""The same in object storage, where each part is asked for over a network."""
MAX_ID: Final = 64
"""Characters of an id."""
MAX_NAME: Final = 255
"""Characters of a file's name that are kept."""


class Purpose(StrEnum):
    """What a file is for, in OpenAI's words."""

    BATCH = "batch"
    """Requests of a batch."""
    OUTPUT = "batch_output"
    """What a batch has made."""


class FileStatus(StrEnum):
    """Whether a file is whole."""

    WRITING = "writing"
    """Nobody sees it yet; what writes it may have ended."""
    PROCESSED = "processed"
    DELETED = "deleted"
    """Nobody sees it any more; its objects are to be deleted."""


class FilePlace(StrEnum):
    """Where a file's content is kept."""

    DATABASE = "database"
    OBJECTS = "objects"


class FileBounds(Struct, frozen=True, kw_only=True):
    """Bounds on what is kept."""

    file_bytes: int = 100 * MIB
    """Of one file that is uploaded."""
    tenant_bytes: int = 1024 * MIB
    """Of all files of a tenant; what batches have made counts, and is kept beyond."""
    seconds: float = 30 * DAY
    """How long a file is kept."""
    writing_seconds: float = 3600.0
    """How long one that is being written is kept without anything written."""
    swept_seconds: float = 60.0
    """How often it is looked for objects that are to be deleted."""
    landing_seconds: float = 120.0
    """How long after its row is given up an object may still be written."""
    stall_seconds: float = 10.0
    """How long an upload may bring nothing."""


class KeptFile(Struct, frozen=True, kw_only=True):
    """One file of a tenant; times are Unix seconds."""

    id: str
    tenant: TenantId
    name: str
    purpose: str
    bytes: int
    status: str
    created: float
    expires: float
    place: str = FilePlace.DATABASE.value
    storage: str = ""
    """URL of the object storage that keeps it; "" in the database, or in what is set now."""

    @property
    def part_bytes(self) -> int:
        """Of its content in each part but the last."""
        return OBJECT_BYTES if self.place == FilePlace.OBJECTS else PART_BYTES

    @property
    def parts(self) -> int:
        """How many parts its content has."""
        return -(-self.bytes // self.part_bytes)

    def shown(self) -> dict[str, Any]:
        """Return OpenAI's object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": int(self.created),
            "expires_at": int(self.expires),
            "filename": self.name,
            "purpose": self.purpose,
            "status": self.status,
            "status_details": None,
        }


def is_object_id(given: str) -> bool:
    """Whether it can be the id of a file or batch; PostgreSQL takes no text with a NUL."""
    return given.isascii() and given.isprintable() and len(given) <= MAX_ID


def kept_name(given: str) -> str:
    """Return the name that a file is kept by: without NULs, which PostgreSQL does not take."""
    return given.replace("\0", "")[:MAX_NAME]


def new_file_id() -> str:
    """Return an id that nobody guesses."""
    return f"file-{secrets.token_hex(12)}"
