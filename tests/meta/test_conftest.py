"""The suite's own rules: no silent skip in CI, warnings are errors, unknown marks are refused."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

pytest_plugins = ("pytester",)

ROOT: Final = Path(__file__).resolve().parents[2]
SUITE: Final = """
import pytest

@pytest.fixture
def broker():
    pytest.skip("no broker here")

@pytest.mark.kafka
def test_reads_from_the_broker(broker):
    pass

@pytest.mark.etcd
def test_elects():
    pytest.skip("no etcd here")

def test_optional_library():
    pytest.skip("not installed")

@pytest.mark.kafka
@pytest.mark.xfail(reason="known", raises=ZeroDivisionError)
def test_known_defect():
    1 / 0
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Iterator[pytest.Pytester]:
    profile = settings.get_current_profile_name()
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]
    kept = [f"{key} = {value!r}" for key, value in table.items() if key != "testpaths"]
    pytester.makepyprojecttoml("\n".join(["[tool.pytest]", *kept]).replace("True", "true"))
    yield pytester
    settings.load_profile(profile)  # The inner conftest chose one for this process.


def test_at_a_desk_a_missing_service_skips_and_is_counted(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    suite.makepyfile(SUITE)
    result = suite.runpytest("-p", "no:cacheprovider")
    result.assert_outcomes(skipped=3, xfailed=1)
    result.stdout.fnmatch_lines(["SKIPPED 3 tests*"])


def test_in_ci_a_missing_service_fails_and_other_skips_stay(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    suite.makepyfile(SUITE)
    result = suite.runpytest("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1, failed=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["*needs a real kafka*no broker here*"])


def test_a_warning_is_an_error(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        "import warnings\ndef test_warns():\n    warnings.warn('old', DeprecationWarning)"
    )
    suite.runpytest("-p", "no:cacheprovider").assert_outcomes(failed=1)


def test_an_unknown_mark_is_refused(suite: pytest.Pytester) -> None:
    suite.makepyfile("import pytest\n@pytest.mark.kafak\ndef test_typo():\n    pass")
    result = suite.runpytest("-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["*'kafak' not found in `markers`*"])
