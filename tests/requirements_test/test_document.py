from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.requirements.document import DOCUMENT, document, results, without_results
from tests.requirements.found import Shown, shown
from tests.requirements.table import NOTES, REQUIREMENTS

ADVICE = "run `make requirements-table`"
ONE = Shown("tests/a/test_it.py", "TestIt::test_b5_is_so")
JUNIT = """<testsuites><testsuite>
<testcase classname="tests.a.test_it.TestIt" name="test_b5_is_so[1-2]" />
<testcase classname="tests.a.test_it.TestIt" name="test_b5_is_so[2-2]"><failure /></testcase>
<testcase classname="tests.a.test_it" name="test_other"><skipped /></testcase>
</testsuite></testsuites>"""


def test_each_requirement_has_a_test_or_says_why_not() -> None:
    tests = shown()
    assert set(tests) <= set(REQUIREMENTS), "a test names what is no requirement"
    assert set(REQUIREMENTS) - set(tests) <= set(NOTES), "neither shown nor explained"


def test_the_page_names_the_tests_there_are() -> None:
    written = DOCUMENT.read_text(encoding="utf-8")
    assert without_results(written) == without_results(document(shown(), {})), ADVICE


def test_tests_are_found_by_name_and_by_mark(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(
        'def test_a6_a14_both(): ...\n\n@pytest.mark.requirement("C2")\nasync def test_other(): ...\n'
        "class TestIt:\n    def test_b5_is_so(self): ...\n    def test_a_letter_is_no_number(self): ...\n"
    )
    assert shown(tmp_path) == {
        "A6": [Shown("tests/test_one.py", "test_a6_a14_both")],
        "A14": [Shown("tests/test_one.py", "test_a6_a14_both")],
        "C2": [Shown("tests/test_one.py", "test_other")],
        "B5": [Shown("tests/test_one.py", "TestIt::test_b5_is_so")],
    }


def test_results_are_of_all_runs_of_a_test(tmp_path: Path) -> None:
    file = tmp_path / "unit.xml"
    file.write_text(JUNIT)
    later = tmp_path / "again.xml"
    later.write_text(
        '<testsuites><testcase classname="tests.a.test_it" name="test_other"><failure /></testcase></testsuites>'
    )
    assert results([file, later])[Shown("tests/a/test_it.py", "test_other")] == Counter(failed=1)
    ended = results([file])
    assert ended == {ONE: Counter(passed=1, failed=1), Shown("tests/a/test_it.py", "test_other"): Counter(skipped=1)}
    page = document({"B5": [ONE]}, ended)
    assert "[b5_is_so](../tests/a/test_it.py) | 1 failed, 1 passed |" in page
    assert "**no test**" in page
