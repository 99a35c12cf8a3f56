"""What the package brings from npm is what npm has; no template or script needs what the policy forbids."""

import base64
import hashlib
import re

import pytest

from cachefleet_controlplane.console.static_files import FOLDER
from cachefleet_controlplane.console.templating import FOLDER as TEMPLATES

TOLD = (FOLDER / "THIRD_PARTY.txt").read_text()
OURS = {"console.css", "live.js", "charts.js", "enter.js", "icon.svg"}


def test_vendored_files_are_those_of_npm() -> None:
    files = re.findall(r"^file (\S+) \S+ (sha512-\S+)$", TOLD, re.MULTILINE)
    assert {name for name, _ in files} | OURS == {
        path.name for path in FOLDER.iterdir() if path.suffix != ".txt" and path.is_file()
    }
    for name, told in files:
        digest = hashlib.sha512((FOLDER / name).read_bytes()).digest()
        assert f"sha512-{base64.b64encode(digest).decode()}" == told, name


def test_every_package_has_its_licence() -> None:
    packages = TOLD.split("\npackage ")[1:]
    licences = [re.search(r"^licence \S+ (\S+)$", package, re.MULTILINE) for package in packages]
    assert len(packages) == 2
    for package, licence in zip(packages, licences, strict=True):
        assert licence
        assert (FOLDER / licence[1]).read_text()
        assert re.search(r"^version \d+\.\d+\.\d+$", package, re.MULTILINE)
        assert re.search(r"^integrity sha512-\S{88}$", package, re.MULTILINE)


@pytest.mark.parametrize("name", sorted(path.name for path in TEMPLATES.iterdir()))
def test_templates_need_no_inline_code_or_style(name: str) -> None:
    text = (TEMPLATES / name).read_text()
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:|hx-on|https?://", text)
    scripts = re.findall(r"<script(?![^>]*\ssrc=)[^>]*>", text)
    assert all('type="application/json"' in one for one in scripts), scripts
