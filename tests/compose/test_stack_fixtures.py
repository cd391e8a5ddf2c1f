"""The fixtures of real services: which source wins, and that none is loud."""

import socket
from pathlib import Path
from typing import Final

import pytest

from compose.local import build

pytest_plugins = ("pytester",)

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = build.cache()  # Read now: pytester moves HOME.
SUITE: Final = """
from pathlib import Path

pytest_plugins = ("tests.fixtures.stack",)

def test_kafka(kafka_bootstrap):
    Path("kafka").write_text(kafka_bootstrap)

def test_etcd(etcd_endpoints):
    Path("etcd").write_text(" ".join(etcd_endpoints))
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in ("CI", "DOCKER_HOST", "TIDEMILL_KAFKA", "TIDEMILL_ETCD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TIDEMILL_CACHE", str(CACHE))
    pytester.makepyfile(SUITE)
    return pytester


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


def run(suite: pytest.Pytester, *options: str) -> pytest.RunResult:
    return suite.runpytest_subprocess("-p", "no:cacheprovider", "-rs", *options)


def test_given_addresses_are_used_as_they_are(
    suite: pytest.Pytester, nothing_installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_KAFKA", "broker:1,broker:2")
    monkeypatch.setenv("TIDEMILL_ETCD", "member:1,member:2")
    run(suite).assert_outcomes(passed=2)
    assert (suite.path / "kafka").read_text() == "broker:1,broker:2"
    assert (suite.path / "etcd").read_text() == "member:1 member:2"


def test_at_a_desk_a_missing_service_skips_with_every_reason(
    suite: pytest.Pytester, nothing_installed: None
) -> None:
    result = run(suite)
    result.assert_outcomes(skipped=2)
    result.stdout.re_match_lines_random(
        [r".*REAL SERVICE MISSING: no real kafka: TIDEMILL_KAFKA is not set; Docker has no image.*"]
    )
    assert "`java` 17 or newer is needed to run Kafka, but it was not found" in result.stdout.str()


def test_a_cold_cache_is_not_filled_inside_a_test(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIDEMILL_CACHE", str(tmp_path / "cold"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    result = run(suite)
    result.assert_outcomes(skipped=2)
    assert "python -m compose.local.build" in result.stdout.str()
    assert not (tmp_path / "cold").exists()


def test_in_ci_a_missing_service_fails(
    suite: pytest.Pytester, nothing_installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(suite)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*CI must bring real services: no real etcd*"])


@pytest.mark.kafka
@pytest.mark.etcd
@pytest.mark.timeout(300)
def test_a_started_service_is_gone_after_the_session(suite: pytest.Pytester) -> None:
    run(suite).assert_outcomes(passed=2)
    for name in ("kafka", "etcd"):
        host, port = (suite.path / name).read_text().split(":")
        with socket.socket() as client:
            assert client.connect_ex((host, int(port))) != 0
