"""The URL of the object storage in which files are kept, checked before anything is asked."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

FOLDER: Final = "file"
SCHEMES: Final = ("s3", "gs", "az", FOLDER)
EXTRA: Final = "object-storage"
_LIBRARY: Final = "obstore"
_FORMS: Final = "s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH or file:///FOLDER"


def usable_files_url(url: str) -> None:
    """ValueError for a URL that names no object storage, or holds more than that; "" means none."""
    if not url:
        return
    parts = urlsplit(url)
    plain = not (parts.query or parts.fragment or "@" in parts.netloc)
    folder = parts.scheme == FOLDER
    named = bool(parts.path.strip("/")) and not parts.netloc if folder else bool(parts.netloc)
    if parts.scheme not in SCHEMES or not (plain and named):
        raise ValueError(f"allowed: {_FORMS}, without credentials: these are read from the environment")
    if find_spec(_LIBRARY) is None:
        raise ValueError(f"object storage needs the extra `{EXTRA}`: pip install 'cachefleet[{EXTRA}]'")
