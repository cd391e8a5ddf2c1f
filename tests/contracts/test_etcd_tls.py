"""Leadership over TLS, on a real etcd that asks for our certificate."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose.local import build
from compose.local.errors import StackError
from compose.local.stack.ports import choose
from services.runtime.adapters.etcd import EtcdLeadership
from services.runtime.adapters.etcd_client import EtcdSettings
from services.runtime.ports import PortError
from tests.fixtures.stack import _give_up

pytestmark = pytest.mark.etcd


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    """A CA, and one certificate that both sides use."""
    key = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl(folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    openssl(folder, "req", *key[:3], "-keyout", "own.key", "-out", "own.csr", "-subj", "/CN=etcd")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
    openssl(folder, "x509", "-req", "-in", "own.csr", *signing, "-days", "2", "-out", "own.pem")


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[EtcdSettings]:
    """Settings for a running member that speaks TLS alone and wants a certificate."""
    try:
        program = build.ensure().etcd
    except StackError as error:
        _give_up(str(error))
    make_certificates(tmp_path)
    client, peer = choose(2)
    address = f"https://127.0.0.1:{client}"
    process = subprocess.Popen(
        [
            program, "--data-dir", "data", "--log-level", "warn",
            "--listen-client-urls", address, "--advertise-client-urls", address,
            "--listen-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-cluster", f"default=http://127.0.0.1:{peer}",
            "--cert-file", "own.pem", "--key-file", "own.key", "--trusted-ca-file", "ca.pem", "--client-cert-auth",
        ],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield EtcdSettings(
            (f"127.0.0.1:{client}",),
            "tls",
            ca=str(tmp_path / "ca.pem"),
            cert=str(tmp_path / "own.pem"),
            key=str(tmp_path / "own.key"),
        )
    finally:
        process.kill()
        process.wait()


def test_a_candidate_leads_over_tls_with_its_certificate(secured: EtcdSettings) -> None:
    leader = EtcdLeadership(secured, "leader")
    try:
        term = None
        for _ in range(10):  # Each try waits for a member that is still starting.
            try:
                term = leader.campaign(3.0)
                break
            except PortError:
                continue
        assert term
        assert leader.holds()
    finally:
        leader.close()


def test_a_file_that_cannot_be_read_is_named() -> None:
    missing = EtcdSettings(("127.0.0.1:1",), "tls", ca="/no/such/ca.pem")
    with pytest.raises(PortError, match=r"/no/such/ca.pem: No such file"):
        EtcdLeadership(missing, "leader")
