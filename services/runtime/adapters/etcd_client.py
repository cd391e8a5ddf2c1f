"""Unary calls to an etcd cluster over its raw v3 stubs: which member is asked, for how long, and what an error means.

Every call has a deadline, asks for a member that has a leader, and moves to the next member when one does not answer: a
frozen or partitioned member costs one deadline. Calls are repeated, so each must be one that may be: a question, or a
change that tells its own repetition. Thread-safe. It knows nothing of elections.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import grpc
import msgspec
from pyetcd import etcdrpc

from services.runtime.ports import PortError

_CHANNEL_OPTIONS: Final = (
    # etcd answers pings more frequent than one in 5 s by closing the connection.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    # Without it a probe of its own keeps grpc waiting for a frozen member for a minute.
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_PAUSE_S: Final = 0.05
_OTHER_MEMBER_MAY_KNOW: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.ABORTED,
    }
)
_STALE_TOKEN: Final = ("invalid auth token", "revision of auth store is old")
_ADVICE: Final[Mapping[grpc.StatusCode, str]] = MappingProxyType(
    {
        grpc.StatusCode.PERMISSION_DENIED: "Let the user read and write the prefix: "
        "`etcdctl role grant-permission ROLE readwrite --prefix=true PREFIX`",
        grpc.StatusCode.RESOURCE_EXHAUSTED: "Make room: `etcdctl compact`, `etcdctl defrag`, `etcdctl alarm disarm`",
        grpc.StatusCode.INVALID_ARGUMENT: "Check user and password",
        grpc.StatusCode.UNAUTHENTICATED: "Check user and password",
        grpc.StatusCode.FAILED_PRECONDITION: "Check whether authentication is enabled there: `etcdctl auth status`",
    }
)


class EtcdSettings(msgspec.Struct, frozen=True):
    """Where etcd is, and how to speak with it.

    `endpoints` are HOST:PORT of each member. A CA file turns TLS on; `cert` and `key` are ours, for members that ask.
    `lease_ttl_s` is how long a dead leader is waited for; etcd raises one below its own least.
    """

    endpoints: tuple[str, ...]
    cell: str
    lease_ttl_s: int = 3
    prefix: str = "tidemill/"
    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password: str = ""


class EtcdError(PortError):
    """An answer of etcd that is an error; `status` tells which."""

    def __init__(self, message: str, status: grpc.StatusCode) -> None:
        super().__init__(message)
        self.status = status


class _Member:
    """One member: its channel and its stubs."""

    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.endpoint = endpoint
        options = list(_CHANNEL_OPTIONS)
        self.channel = (
            grpc.insecure_channel(endpoint, options)
            if credentials is None
            else grpc.secure_channel(endpoint, credentials, options)
        )
        self.kv = etcdrpc.KVStub(self.channel)
        self.lease = etcdrpc.LeaseStub(self.channel)
        self.watch = etcdrpc.WatchStub(self.channel)
        self.auth = etcdrpc.AuthStub(self.channel)


# Asks one member: `method(request, timeout=..., metadata=...)`.
Method = Callable[..., Any]
Pick = Callable[[_Member], Method]


class EtcdClient:
    """The members of one cluster, one of which is asked at a time."""

    def __init__(self, settings: EtcdSettings) -> None:
        if not settings.endpoints:
            raise PortError("no etcd endpoint is given. Name each member: HOST:PORT,HOST:PORT")
        self._settings = settings
        # Two members may fail within a lease, and a third still renews it.
        self.attempt_s = settings.lease_ttl_s / 6
        credentials = _credentials(settings)
        self._members = [_Member(endpoint, credentials) for endpoint in settings.endpoints]
        self._turning = threading.Lock()
        self._at = 0
        self._token = ""

    def call(self, pick: Pick, request: Any, *, budget_s: float) -> Any:
        """The answer of the first member that gives one, asking for up to `budget_s`, and each member once at least.

        Raises EtcdError, whose outcome is unknown unless etcd refused the request.
        """
        deadline = time.monotonic() + budget_s
        tries = 0
        while True:
            at, member = self._current()
            try:
                return self._ask(member, pick, request)
            except grpc.RpcError as error:
                tries += 1
                late = time.monotonic() > deadline and tries >= len(self._members)
                if error.code() not in _OTHER_MEMBER_MAY_KNOW or late:
                    raise self._meaning(error, member) from error
                self._turn_from(at)
                if tries % len(self._members) == 0:
                    time.sleep(_PAUSE_S)

    def stream(self, pick: Pick, requests: Any, *, timeout_s: float) -> Any:
        """A stream from the current member, which ends after `timeout_s` at the latest. Its errors are grpc's."""
        _, member = self._current()
        self._log_in(member)
        return pick(member)(requests, timeout=timeout_s, metadata=self._metadata())

    def turn_after(self, error: grpc.RpcError) -> None:
        """A stream failed: log in again if that is why, and ask another member from now on."""
        if self._is_stale(error):
            self._token = ""
        self._turn_from(self._current()[0])

    def close(self) -> None:
        """Close the channels; calls that wait end with an error."""
        for member in self._members:
            member.channel.close()

    def _ask(self, member: _Member, pick: Pick, request: Any) -> Any:
        self._log_in(member)
        try:
            return pick(member)(request, timeout=self.attempt_s, metadata=self._metadata())
        except grpc.RpcError as error:
            if not self._is_stale(error):
                raise
        self._token = ""
        self._log_in(member)
        return pick(member)(request, timeout=self.attempt_s, metadata=self._metadata())

    def _log_in(self, member: _Member) -> None:
        """Get a token when there is none. Tokens end: after five minutes, or when users change."""
        if self._settings.user and not self._token:
            who = etcdrpc.AuthenticateRequest(
                name=self._settings.user, password=self._settings.password
            )
            self._token = member.auth.Authenticate(who, timeout=self.attempt_s).token

    def _is_stale(self, error: grpc.RpcError) -> bool:
        details = error.details() or ""
        return bool(self._settings.user) and any(text in details for text in _STALE_TOKEN)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """A member without a leader answers with an error instead of not at all."""
        token = (("token", self._token),) if self._token else ()
        return (("hasleader", "true"), *token)

    def _current(self) -> tuple[int, _Member]:
        with self._turning:
            return self._at, self._members[self._at % len(self._members)]

    def _turn_from(self, at: int) -> None:
        """Move on, unless another caller has already."""
        with self._turning:
            if self._at == at:
                self._at += 1

    def _meaning(self, error: grpc.RpcError, member: _Member) -> EtcdError:
        status, details = error.code(), error.details()
        if status in _OTHER_MEMBER_MAY_KNOW:
            names = ", ".join(self._settings.endpoints)
            return EtcdError(
                f"no member of etcd ({names}) answered; {member.endpoint} last: {details}. Check that a majority "
                "of them runs and can be reached, then try again.",
                status,
            )
        advice = _ADVICE.get(status, "Look at its log")
        return EtcdError(f"etcd {member.endpoint}: {details}. {advice}, then try again.", status)


def _credentials(settings: EtcdSettings) -> grpc.ChannelCredentials | None:
    if not settings.ca:
        return None
    try:
        ca = Path(settings.ca).read_bytes()
        key = Path(settings.key).read_bytes() if settings.key else None
        cert = Path(settings.cert).read_bytes() if settings.cert else None
    except OSError as error:
        raise PortError(
            f"{error.filename}: {error.strerror}. Give a file that this user may read."
        ) from error
    return grpc.ssl_channel_credentials(ca, key, cert)
