"""Leadership on a real etcd of three members that freeze, die, lose their majority, or are restored from nothing."""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from pyetcd import etcdrpc

from compose.local.stack import Stack
from services.runtime.adapters.etcd import EtcdLeadership
from services.runtime.adapters.etcd_client import EtcdError, EtcdSettings
from services.runtime.ports import PortError
from tests.fixtures.stack import ROOT, _launched

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(180)]

TTL_S = 3
DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def _members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with _launched(tmp_path_factory.mktemp("etcd"), brokers=0, etcd=3) as stack:
        yield stack


@pytest.fixture
def members(_members: Stack) -> Stack:
    """Three members, healthy when the test begins."""
    _members.up()
    return _members


class Candidates:
    """Candidates of one cell; `settings` says which member each asks first."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.cell = f"t{secrets.token_hex(5)}"

    def __call__(self, *endpoints: str, **settings: str) -> EtcdLeadership:
        told = EtcdSettings(endpoints, self.cell, lease_ttl_s=TTL_S, **settings)
        candidate = EtcdLeadership(told, f"candidate-{secrets.token_hex(2)}")
        self._stack.callback(candidate.close)
        return candidate


@pytest.fixture
def stand() -> Iterator[Candidates]:
    with ExitStack() as stack:
        yield Candidates(stack)


def addresses(stack: Stack) -> dict[str, str]:
    return {member.name: f"127.0.0.1:{member.client}" for member in stack.layout.etcd}


def raft_leader(stack: Stack) -> str:
    """The member that leads the others now."""
    for name, address in addresses(stack).items():
        with grpc.insecure_channel(address) as channel:
            status = etcdrpc.MaintenanceStub(channel).Status(etcdrpc.StatusRequest(), timeout=5)
            if status.header.member_id == status.leader:
                return name
    raise AssertionError("no member leads")


def a_follower_first(stack: Stack) -> tuple[str, list[str]]:
    """A member that does not lead, and all addresses beginning with its own."""
    known, leader = addresses(stack), raft_leader(stack)
    follower = next(name for name in known if name != leader)
    return follower, [known[follower], *(a for n, a in known.items() if n != follower)]


def await_that(condition: Callable[[], bool], what: str, within_s: float = DEADLINE_S) -> float:
    """Wait for the condition; how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, f"not within {within_s} s: {what}"
        threading.Event().wait(0.01)
    return time.monotonic() - began


def holds_throughout(leader: EtcdLeadership, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not leader.holds():
            return False
        threading.Event().wait(0.02)
    return True


def win(candidate: EtcdLeadership) -> int:
    term = candidate.campaign(DEADLINE_S)
    assert term is not None
    return term


@pytest.mark.parametrize("fault", ["pause", "kill"])
def test_a_leader_outlives_the_member_it_talks_to(
    members: Stack, stand: Candidates, fault: str
) -> None:
    follower, endpoints = a_follower_first(members)
    leader = stand(*endpoints)
    win(leader)
    getattr(members, fault)(follower)
    assert holds_throughout(leader, 3 * TTL_S)


def test_a_candidate_wins_though_the_member_it_waits_at_is_frozen(
    members: Stack, stand: Candidates
) -> None:
    follower, endpoints = a_follower_first(members)
    leader, other = stand(*endpoints[1:]), stand(*endpoints)
    first = win(leader)
    won: list[int] = []
    thread = threading.Thread(target=lambda: won.append(win(other)))
    thread.start()
    members.pause(follower)
    leader.resign()
    thread.join(DEADLINE_S)
    assert won
    assert won[0] > first
    assert other.holds()


def test_when_the_member_that_leads_etcd_freezes_one_candidate_leads_again(
    members: Stack, stand: Candidates
) -> None:
    known = addresses(members)
    leader, other = stand(*known.values()), stand(*known.values())
    first = win(leader)
    members.pause(raft_leader(members))
    won: list[int] = []
    thread = threading.Thread(target=lambda: won.append(win(other)))
    thread.start()
    await_that(lambda: bool(won) or holds_throughout(leader, 2 * TTL_S), "somebody leads")
    if not won:
        leader.resign()
    thread.join(DEADLINE_S)
    assert won[0] > first
    assert (leader.holds(), other.holds()) == (False, True)


def test_a_lease_that_is_gone_is_noticed_at_the_next_renewal(
    members: Stack, stand: Candidates
) -> None:
    """Etcd answers the renewal of a lease that is gone without an error, with TTL 0."""
    endpoints = list(addresses(members).values())
    leader, other = stand(*endpoints), stand(*endpoints)
    first = win(leader)
    assert leader._session is not None
    with grpc.insecure_channel(endpoints[0]) as channel:
        revoke = etcdrpc.LeaseRevokeRequest(ID=leader._session._lease)
        etcdrpc.LeaseStub(channel).LeaseRevoke(revoke, timeout=5)
    took_s = await_that(lambda: not leader.holds(), "it notices")
    assert took_s < TTL_S
    assert win(other) > first
    assert not leader.holds()
    assert leader.campaign(0.1) is None


def test_without_a_majority_a_leader_stops_in_time_and_later_one_leads_again(
    members: Stack, stand: Candidates
) -> None:
    endpoints = list(addresses(members).values())
    leader, other = stand(*endpoints), stand(*endpoints)
    first = win(leader)
    for name in ("etcd-1", "etcd-2"):
        members.pause(name)
    assert await_that(lambda: not leader.holds(), "it stops") <= TTL_S
    with pytest.raises(PortError, match=r"no member of etcd .* answered.*majority"):
        other.campaign(0)
    for name in ("etcd-1", "etcd-2"):
        members.resume(name)
    members.wait_healthy()
    assert win(other) > first
    assert not leader.holds()


def test_resigning_hands_over_at_once(members: Stack, stand: Candidates) -> None:
    endpoints = list(addresses(members).values())
    leader, other = stand(*endpoints), stand(*endpoints)
    win(leader)
    won_at: list[float] = []

    def wait_and_win() -> None:
        win(other)
        won_at.append(time.monotonic())

    thread = threading.Thread(target=wait_and_win)
    thread.start()
    # It stands in line once etcd knows two keys; a wait that began later would find no leader at all.
    await_that(lambda: other._session is not None and hasattr(other._session, "revision"), "queue")
    resigned_at = time.monotonic()
    leader.resign()
    thread.join(DEADLINE_S)
    assert won_at[0] - resigned_at < TTL_S / 2


def test_a_process_that_was_frozen_past_its_lease_does_not_hold_when_it_thaws(
    members: Stack, stand: Candidates
) -> None:
    endpoints = list(addresses(members).values())
    frozen = subprocess.Popen(
        [sys.executable, "-m", "tests.contracts.etcd_candidate", stand.cell, *endpoints],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert frozen.stdin is not None
    assert frozen.stdout is not None
    try:
        first = int(frozen.stdout.readline())
        frozen.stdin.write("\n")
        frozen.stdin.flush()
        assert frozen.stdout.readline() == "True\n"
        os.kill(frozen.pid, signal.SIGSTOP)
        other = stand(*endpoints)
        assert win(other) > first
        frozen.stdin.write(
            "\n"
        )  # It reads this as soon as it thaws, before any renewal can tell it.
        frozen.stdin.flush()
        os.kill(frozen.pid, signal.SIGCONT)
        assert frozen.stdout.readline() == "False\n"
        assert other.holds()
    finally:
        frozen.kill()
        frozen.communicate()


# --- one member with data of its own


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[Stack]:
    with _launched(tmp_path, brokers=0, etcd=1) as stack:
        yield stack


def test_terms_of_an_etcd_that_lost_its_data_go_backwards_and_are_handed_on_as_they_are(
    lone: Stack, stand: Candidates
) -> None:
    (endpoint,) = addresses(lone).values()
    term = 0
    for _ in range(5):
        first = stand(endpoint)
        term = win(first)
        first.close()
    holder = stand(endpoint)
    win(holder)
    lone.kill("etcd-1")
    data = lone.folder("etcd-1") / "data"
    data.rename(data.with_name("lost"))
    lone.start("etcd-1")
    lone.wait_healthy()
    await_that(lambda: not holder.holds(), "the old leader's lease is gone")
    assert 0 < win(stand(endpoint)) < term


def call(endpoint: str, stub: type, method: str, request: object, token: str = "") -> object:
    with grpc.insecure_channel(endpoint) as channel:
        metadata = (("token", token),) if token else ()
        return getattr(stub(channel), method)(request, timeout=5, metadata=metadata)


def allow(endpoint: str, user: str, password: str, prefix: str) -> None:
    """A user that may touch the prefix, a root, and authentication on."""

    def auth(method: str, request: object) -> None:
        call(endpoint, etcdrpc.AuthStub, method, request)

    for name, secret in (("root", "r"), (user, password)):
        auth("UserAdd", etcdrpc.AuthUserAddRequest(name=name, password=secret))
        auth("RoleAdd", etcdrpc.AuthRoleAddRequest(name=name))
        auth("UserGrantRole", etcdrpc.AuthUserGrantRoleRequest(user=name, role=name))
    permission = {
        "permType": 2,
        "key": prefix.encode(),
        "range_end": prefix[:-1].encode() + bytes([ord(prefix[-1]) + 1]),
    }
    auth("RoleGrantPermission", etcdrpc.AuthRoleGrantPermissionRequest(name=user, perm=permission))
    auth("AuthEnable", etcdrpc.AuthEnableRequest())


def test_with_authentication_a_user_leads_and_logs_in_again_when_its_token_ends(
    lone: Stack, stand: Candidates
) -> None:
    (endpoint,) = addresses(lone).values()
    allow(endpoint, "scheduler", "secret", "tidemill/")
    with pytest.raises(EtcdError, match=r"authentication failed.*Check user and password"):
        stand(endpoint, user="scheduler", password="wrong").campaign(0)
    with pytest.raises(EtcdError, match="Check user and password"):
        stand(endpoint).campaign(0)
    with pytest.raises(EtcdError, match=r"permission denied.*grant-permission"):
        stand(endpoint, user="scheduler", password="secret", prefix="other/").campaign(0)
    leader = stand(endpoint, user="scheduler", password="secret")
    other = stand(endpoint, user="scheduler", password="secret")
    win(leader)
    leader._client._token = "ended"
    other._client._token = "ended"
    assert other.campaign(TTL_S) is None
    assert holds_throughout(leader, 2 * TTL_S)
    leader.resign()
    assert other.campaign(DEADLINE_S) is not None
