"""The site of the pages: links of pages and of files at the root hold in it, and one that does not ends its build."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from tests.docs.examples import ROOT
from tests.site_pages import moved, place

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def made(folder: Path) -> Path:
    """Build the site of the repository's configuration from the pages in ``folder``; where it is."""
    site = folder.parent / "site"
    build(load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(folder), site_dir=str(site), strict=True))
    return site


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "docs", tmp_path / "docs"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of the pages as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return made(Path(shutil.copytree(ROOT / "docs", tmp_path_factory.mktemp("site") / "docs")))


def test_every_page_is_found_by_its_words_and_stands_under_a_reader(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    named = {entry["location"].partition("#")[0] for entry in index if entry["text"]}
    wanted = {f"{page.stem}/" for page in (ROOT / "docs").glob("*.md")}
    assert wanted <= named
    assert any("preStop" in entry["text"] for entry in index)
    readers = re.findall(
        r'<li class="md-tabs__item[^"]*">\s*<a[^>]*>\s*([^<]*?)\s*</a>', (site / "index.html").read_text()
    )
    assert readers == [
        "Cachefleet",
        *("Platform engineers", "Application developers", "SREs", "Contributors", "Everybody"),
    ]
    assert all(f'href="{page}"' in (site / "index.html").read_text() for page in wanted), "navigation has each page"


def test_pictures_that_pages_show_are_in_it(site: Path) -> None:
    shown = {
        (page.parent / picture).resolve()
        for page in site.rglob("*.html")
        for picture in re.findall(r'<img[^>]* src="([^":]+\.png)"', page.read_text())
    }
    assert {path.name for path in shown} == {path.name for path in (ROOT / "docs" / "images").glob("*.png")}
    assert [path for path in shown if not path.is_file()] == []


def test_pages_and_what_they_lead_to_are_in_it(site: Path) -> None:
    assert 'href="gateway/"' in (site / "index.html").read_text()
    assert 'href="../source/examples/gpu-qwen.yaml"' in (site / "budget" / "index.html").read_text()
    assert (site / "source" / "examples" / "gpu-qwen.yaml").read_bytes() == (
        ROOT / "examples" / "gpu-qwen.yaml"
    ).read_bytes()


@pytest.mark.parametrize("link", ["[x](nowhere.md)", "[x](gateway.md#nowhere)", "[x](../examples/nowhere.yaml)"])
def test_a_link_to_nothing_ends_its_build(pages: Path, link: str) -> None:
    (pages / "budget.md").write_text(f"# Budget\n\n{link}\n")
    with pytest.raises(Abort):
        made(pages)


@pytest.mark.parametrize(
    ("page", "link", "moves_to"),
    [
        ("README.md", "docs/gateway.md", "gateway.md"),
        ("README.md", "CHANGELOG.md", "CHANGELOG.md"),
        ("docs/budget.md", "../examples/a.yaml", "source/examples/a.yaml"),
        ("docs/adr/0001.md", "../../CONTRIBUTING.md#cargo", "../CONTRIBUTING.md#cargo"),
        ("docs/adr/0001.md", "../decisions.md", "../decisions.md"),
        ("docs/budget.md", "https://a.example/b.md", "https://a.example/b.md"),
        ("docs/budget.md", "#below", "#below"),
    ],
)
def test_links_of_the_repository_hold_in_it(page: str, link: str, moves_to: str) -> None:
    assert moved(f"[x]({link})", page) == f"[x]({moves_to})"


def test_the_readme_is_its_first_page() -> None:
    assert place("README.md") == "index.md"
