"""The Leadership port on etcd: one lease a candidate, one key a lease, the oldest key leads; its revision is the term.

A session is a lease that a thread of its own renews, and the candidate's key under it. What a leader may believe is
judged by local clocks alone: until the time before the last good renewal was sent, plus the lease, less a margin. It
fences nothing: the chain does. It compares no term with the log's: the leader does, and refuses one that went backwards.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import Any, Final

import grpc
from pyetcd import etcdrpc

from services.runtime.adapters.etcd_client import EtcdClient, EtcdError, EtcdSettings
from services.runtime.ports import PortError

_RENEWALS_A_LEASE: Final = 3
# Clocks of etcd and ours run at slightly different speeds.
_MARGIN: Final = 0.1
_LEASE_ID_BITS: Final = 62
_ABSENT: Final = 0


class EtcdLeadership:
    """One candidate. `campaign` may be called again and again; its place in the line is kept in between."""

    def __init__(self, settings: EtcdSettings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._client = EtcdClient(settings)
        self._campaigning = threading.Lock()
        self._session: _Session | None = None
        self._term: int | None = None
        self._over = False

    def campaign(self, timeout_s: float) -> int | None:
        """Stand for up to `timeout_s`. Raises PortError when etcd answers neither way.

        The term is the revision that created our key: higher than all before it, unless etcd was restored from a
        backup or emptied, which the caller sees by the log.
        """
        deadline = time.monotonic() + timeout_s
        with self._campaigning:
            while not self._over:
                if self._term is not None:
                    return self._term if self.holds() else None
                session = self._standing()
                ahead = session.predecessor()
                if ahead is None and session.valid():
                    # Renewed within its time, and nobody is before it: it leads from here on.
                    self._term = session.revision
                    return self._term
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                if ahead is not None:
                    wait_s = min(left_s, self._settings.lease_ttl_s / _RENEWALS_A_LEASE)
                    session.await_change(ahead, timeout_s=wait_s)
        return None

    def holds(self) -> bool:
        """Whether we lead by our own clocks; False for ever after the lease ended, was lost, or was given back."""
        session = self._session
        if self._over or self._term is None or session is None:
            return False
        return session.valid()

    def resign(self) -> None:
        """Delete our key, so that the next in line leads at once. Raises PortError when etcd does not answer."""
        self._over = True
        with self._campaigning:
            session, self._session = self._session, None
            if session is None:
                return
            try:
                session.end()
            except EtcdError as error:
                raise PortError(
                    f"could not resign, so the next leader waits for our lease of {self._settings.lease_ttl_s} s: {error}"
                ) from error

    def close(self) -> None:
        """Resign if it can be done, and close the connections; else the lease ends by itself."""
        with contextlib.suppress(PortError):  # Then the lease ends by itself.
            self.resign()
        self._client.close()

    def _standing(self) -> _Session:
        """The session that stands; a new one when a candidate's lease has ended."""
        if self._session is None or not self._session.valid():
            if self._session is not None:
                self._session.stop()
            self._session = _Session(self._client, self._settings, self._name)
        return self._session


class _Session:
    """A lease, the thread that renews it, and a key that lives as long. Making one asks etcd."""

    def __init__(self, client: EtcdClient, settings: EtcdSettings, name: str) -> None:
        self._client = client
        self._budget_s = float(settings.lease_ttl_s)
        self._lease = secrets.randbits(_LEASE_ID_BITS) + 1
        self._prefix = f"{settings.prefix}{settings.cell}/leader/".encode()
        self._key = self._prefix + f"{self._lease:016x}".encode()
        self._ended = threading.Event()
        self._lost = False
        sent = _clocks()
        self._ttl_s = self._grant(settings.lease_ttl_s)
        self._valid_until = self._until(sent)
        self._renewing = threading.Thread(
            target=self._renew_for_ever, name="etcd-lease", daemon=True
        )
        self._renewing.start()
        try:
            self.revision = self._put(name)
        except PortError:
            self.stop()
            raise

    def valid(self) -> bool:
        """Whether the lease surely lives, by two clocks: one stands still in a suspended machine."""
        if self._lost or self._ended.is_set():
            return False
        until = self._valid_until
        if all(now < end for now, end in zip(_clocks(), until, strict=True)):
            return True
        self._lost = True
        return False

    def predecessor(self) -> tuple[bytes, int] | None:
        """The key just before ours in the line, and the revision at which it was seen; None: we are first.

        None and no longer valid: our own key is gone. Raises EtcdError.
        """
        before_us = etcdrpc.RangeRequest(
            key=self._prefix,
            range_end=_prefix_end(self._prefix),
            max_create_revision=self.revision - 1,
            sort_order=etcdrpc.RangeRequest.DESCEND,
            sort_target=etcdrpc.RangeRequest.CREATE,
            limit=1,
            keys_only=True,
        )
        answer = self._client.call(
            lambda member: member.kv.Txn,
            etcdrpc.TxnRequest(
                compare=[self._created_at(self.revision)],
                success=[etcdrpc.RequestOp(request_range=before_us)],
            ),
            budget_s=self._budget_s,
        )
        if not answer.succeeded:
            self._lost = True
            return None
        found = answer.responses[0].response_range.kvs
        return (found[0].key, answer.header.revision) if found else None

    def await_change(self, ahead: tuple[bytes, int], *, timeout_s: float) -> None:
        """Wait until the key before ours is deleted, as a hint: a silent or broken watch ends after `timeout_s`."""
        key, revision = ahead
        watch = etcdrpc.WatchRequest(
            create_request=etcdrpc.WatchCreateRequest(
                key=key,
                start_revision=revision + 1,
                filters=[etcdrpc.WatchCreateRequest.NOPUT],
            )
        )
        ended = threading.Event()
        stream = self._client.stream(
            lambda member: member.watch.Watch, _one_and_hold(watch, ended), timeout_s=timeout_s
        )
        try:
            for answer in stream:
                if answer.events or answer.canceled:
                    return
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                self._client.turn_after(error)
                self._ended.wait(min(timeout_s, self._client.attempt_s))
        finally:
            ended.set()
            stream.cancel()

    def stop(self) -> None:
        """Renew no longer."""
        self._ended.set()
        self._renewing.join()

    def end(self) -> None:
        """Stop, and let go of the key and the lease. Raises EtcdError."""
        self.stop()
        delete = etcdrpc.RequestOp(request_delete_range=etcdrpc.DeleteRangeRequest(key=self._key))
        self._client.call(
            lambda member: member.kv.Txn,
            etcdrpc.TxnRequest(compare=[self._created_at(self.revision)], success=[delete]),
            budget_s=self._budget_s,
        )
        try:
            self._client.call(
                lambda member: member.lease.LeaseRevoke,
                etcdrpc.LeaseRevokeRequest(ID=self._lease),
                budget_s=self._budget_s,
            )
        except EtcdError as error:
            if error.status is not grpc.StatusCode.NOT_FOUND:  # It has ended by itself.
                raise

    def _grant(self, ttl_s: int) -> float:
        """Make the lease; its id is ours alone, so finding it there already means that an earlier try was heard."""
        try:
            granted = self._client.call(
                lambda member: member.lease.LeaseGrant,
                etcdrpc.LeaseGrantRequest(TTL=ttl_s, ID=self._lease),
                budget_s=self._budget_s,
            )
        except EtcdError as error:
            if (
                error.status is not grpc.StatusCode.FAILED_PRECONDITION
                or "lease already" not in str(error)
            ):
                raise
            return float(ttl_s)
        return float(granted.TTL)

    def _put(self, name: str) -> int:
        """Stand in line; the revision that created our key, whichever try created it."""
        put = etcdrpc.PutRequest(key=self._key, value=name.encode(), lease=self._lease)
        get = etcdrpc.RangeRequest(key=self._key)
        answer = self._client.call(
            lambda member: member.kv.Txn,
            etcdrpc.TxnRequest(
                compare=[self._created_at(_ABSENT)],
                success=[etcdrpc.RequestOp(request_put=put)],
                failure=[etcdrpc.RequestOp(request_range=get)],
            ),
            budget_s=self._budget_s,
        )
        if answer.succeeded:
            return int(answer.header.revision)
        return int(answer.responses[0].response_range.kvs[0].create_revision)

    def _created_at(self, revision: int) -> Any:
        """The condition that our key was created at that revision, by which a change tells its own repetition."""
        equal, created = etcdrpc.Compare.EQUAL, etcdrpc.Compare.CREATE
        return etcdrpc.Compare(
            key=self._key, target=created, result=equal, create_revision=revision
        )

    def _renew_for_ever(self) -> None:
        """Renew every third of the lease, moving from member to member, until it ends."""
        while not self._ended.wait(self._ttl_s / _RENEWALS_A_LEASE):
            if not self._renewed():
                self._lost = True
                return

    def _renewed(self) -> bool:
        """Try until it is renewed or its time is over. A TTL of 0 is etcd's way to say that it is gone."""
        while self.valid():
            sent = _clocks()
            try:
                left_s = self._keep_alive()
            except grpc.RpcError as error:
                self._client.turn_after(
                    error
                )  # Another member may reach the leader; validity bounds the tries.
                self._ended.wait(self._client.attempt_s / 10)
                continue
            if left_s <= 0:
                return False
            self._valid_until = self._until(sent)
            return True
        return self._ended.is_set()

    def _keep_alive(self) -> float:
        request = etcdrpc.LeaseKeepAliveRequest(ID=self._lease)
        stream = self._client.stream(
            lambda member: member.lease.LeaseKeepAlive,
            iter([request]),
            timeout_s=self._client.attempt_s,
        )
        for answer in stream:
            stream.cancel()
            return float(answer.TTL)
        return 0.0

    def _until(self, sent: tuple[float, float]) -> tuple[float, float]:
        monotonic, boot = sent
        lease_s = self._ttl_s * (1 - _MARGIN)
        return monotonic + lease_s, boot + lease_s


def _clocks() -> tuple[float, float]:
    return time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)


def _one_and_hold(request: Any, ended: threading.Event) -> Any:
    """Send one request and keep the stream's sending half open."""
    yield request
    ended.wait()


def _prefix_end(prefix: bytes) -> bytes:
    return prefix[:-1] + bytes([prefix[-1] + 1])
