"""The site's files beside docs/: pages at the root of the repository, and files that pages lead to."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = {"README.md": "index.md", "CONTRIBUTING.md": "", "CHANGELOG.md": "", "SECURITY.md": ""}
"""Pages at the root of the repository, and what they are called in the site where that differs."""
SOURCES: Final = "source"
"""Where the site has the other files that pages lead to."""
_LINK: Final = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the root, and what all pages lead to outside of docs/."""
    texts = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    texts |= {page: (ROOT / page).read_text() for page in PAGES}
    for page, name in PAGES.items():
        files.append(File.generated(config, name or page, content=moved(texts[page], page)))
    for target in sorted({target for page, text in texts.items() for target in _targets(text, page)}):
        if files.get_file_from_path(place(target)) is None and (ROOT / target).is_file():
            files.append(File.generated(config, place(target), abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Have links of a page of docs/ lead to where the site has what they lead to."""
    return markdown if page.file.generated_by else moved(markdown, f"docs/{page.file.src_uri}")


def place(path: str) -> str:
    """Where the site has a file of the repository."""
    if path in PAGES:
        return PAGES[path] or path
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{SOURCES}/{path}"


def moved(text: str, page: str) -> str:
    """The text of a page of the repository with links that hold in the site."""
    here = posixpath.dirname(place(page))
    return _LINK.sub(lambda link: posixpath.relpath(place(_target(link[0], page)), here or "."), text)


def _targets(text: str, page: str) -> set[str]:
    return {_target(link, page) for link in _LINK.findall(text)}


def _target(link: str, page: str) -> str:
    """The path in the repository that a link leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
