"""Leadership on a real etcd keeps the contract."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from services.runtime.adapters.etcd import EtcdLeadership
from services.runtime.adapters.etcd_client import EtcdSettings
from tests.contracts.leadership_contract import LeadershipContract, Stand

pytestmark = pytest.mark.etcd


class TestEtcdLeadership(LeadershipContract):
    @pytest.fixture
    def stand(self, etcd_endpoints: tuple[str, ...]) -> Iterator[Stand]:
        settings = EtcdSettings(etcd_endpoints, f"t{secrets.token_hex(5)}")
        with ExitStack() as stack:

            def stand() -> EtcdLeadership:
                candidate = EtcdLeadership(settings, f"candidate-{secrets.token_hex(2)}")
                stack.callback(candidate.close)
                return candidate

            yield stand
