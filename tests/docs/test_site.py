"""The site of the pages: links of pages and of files at the root hold in it, and one that does not ends its build."""

from __future__ import annotations

import shutil
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


def test_pages_and_what_they_lead_to_are_in_it(pages: Path) -> None:
    site = made(pages)
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
