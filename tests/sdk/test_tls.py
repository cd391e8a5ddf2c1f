"""A trainer and a client in a cell that speaks TLS alone, with a CA that no system knows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.fakes.gateway import FakeGateway
from tests.sdk.attempt import Cell, until
from tidemill.context import discover


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a server at 127.0.0.1 that vouches for itself; its key is beside it."""
    folder = tmp_path_factory.mktemp("tls")
    made = ("-keyout", "own.key", "-out", "own.pem", "-days", "2", "-subj", "/CN=gateway")
    names = ("-addext", "subjectAltName=IP:127.0.0.1")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made, *names]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "own.pem"


@pytest.fixture
def secure(certificate: Path) -> Iterator[FakeGateway]:
    fake = FakeGateway()
    pair = (certificate.with_suffix(".key").read_bytes(), certificate.read_bytes())
    fake.start(grpc.ssl_server_credentials([pair]))
    yield fake
    fake.stop()


def test_a_trainer_reaches_its_gateway_with_the_ca_that_it_is_told(
    secure: FakeGateway, certificate: Path, tmp_path: Path
) -> None:
    told = {"TIDEMILL_GATEWAY": f"tls://{secure.address}", "TIDEMILL_CA": str(certificate)}
    with Cell(secure, tmp_path).session(told) as training:
        training.step(1)
        until(secure, lambda: bool(secure.progress))


def test_a_client_inside_a_run_reaches_the_same_gateway(
    secure: FakeGateway, certificate: Path, tmp_path: Path
) -> None:
    env = {"TIDEMILL_GATEWAY": f"tls://{secure.address}", "TIDEMILL_CA": str(certificate)}
    found = discover(env=env | {"HOME": str(tmp_path)})
    assert found.ca == str(certificate)
    assert discover(gateway="other:1", env=env | {"HOME": str(tmp_path)}).ca == ""
