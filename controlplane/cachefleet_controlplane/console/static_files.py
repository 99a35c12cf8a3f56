"""Scripts and styles of the package, read once and served from memory under addresses that name their content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOR_EVER: Final = "public, max-age=31536000, immutable"
_VERSION: Final = 12


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    version: str


class StaticFiles:
    """The files of a folder that browsers ask for."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {path.name: _read(path) for path in folder.iterdir() if path.suffix in _TYPES}

    def url(self, name: str) -> str:
        """The address of a file; it changes with its content."""
        return f"/console/static/{name}?v={self._files[name].version}"

    async def serve(self, request: Request) -> Response:
        """The route ``/static/{name}``; anybody may read what every installation has."""
        file = self._files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404, "There is no such file.")
        known = request.query_params.get("v") == file.version
        return Response(
            file.content, media_type=file.media_type, headers={"cache-control": _FOR_EVER if known else "no-cache"}
        )


def _read(path: Path) -> _File:
    content = path.read_bytes()
    return _File(content, _TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:_VERSION])
