"""Requests on their way: published, durable, decided. Owns what each waiting caller is told, and when.

Nothing is answered as durable before it is, nothing as decided before the log shows it. Repeats are answered from the
fold, so a restarted gateway answers them as the one before it would have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec
from google.protobuf.message import Message

from services.gateway.effects import Effects, Now, Result
from services.gateway.refusal import Refusal, Status, Violation
from services.runtime.ids import reused_key
from services.runtime.ports import Outgoing, PortError, StorageFullError
from statemachines.cluster import Answer, Cluster

RETRY_AFTER_MS: Final = 1_000
RETRY_AFTER_FULL_MS: Final = 30_000
# A caller without a deadline is answered after this.
WAIT_MAX_MS: Final = 30_000
# Of a caller's time, what is kept for the way back: a tenth, within these.
MARGIN_MIN_MS: Final = 20
MARGIN_MAX_MS: Final = 250
REQUESTS_OPEN_MAX: Final = 50_000

# Codes of RequestRefused, and the status that fits; another code is a precondition that failed.
_STATUS: Final[Mapping[str, Status]] = {
    "unknown_queue": Status.NOT_FOUND,
    "unknown_job": Status.NOT_FOUND,
    "unknown_node": Status.NOT_FOUND,
    "job_limit": Status.RESOURCE_EXHAUSTED,
    "impossible": Status.INVALID_ARGUMENT,
    "permission": Status.PERMISSION_DENIED,
    "request_id_reused": Status.ALREADY_EXISTS,
}


class Wish(msgspec.Struct, frozen=True):
    """A request ready to be published. `digest` tells same from other content under one key."""

    key: str
    digest: bytes
    record: Outgoing
    blobs: tuple[bytes, ...] = ()


class Waiter(msgspec.Struct, frozen=True):
    """A call that waits. `accepted` makes its answer from the fold; `durable` the one before a decision, if any."""

    call: int
    accepted: Callable[[], Message]
    durable: Callable[[], Message] | None = None
    durable_only: bool = False


class _Open:
    """One request whose decision is not known yet."""

    __slots__ = ("digest", "durable", "waiters")

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.durable = False
        self.waiters: dict[int, Waiter] = {}


class Requests:
    """All requests of this gateway that somebody waits for, or that are not durable yet."""

    def __init__(self, cluster: Cluster, effects: Effects) -> None:
        self._cluster = cluster
        self._effects = effects
        self._open: dict[str, _Open] = {}
        self._calls: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, wish: Wish, waiter: Waiter, now: Now, *, deadline_ms: int) -> None:
        """Publish, or join the same request on its way, or answer what was decided before. `deadline_ms` 0: none."""
        answer = self._cluster.answers.get(wish.key)
        if answer is not None:
            self._tell(waiter, wish.key, wish.digest, answer)
            return
        found = self._open.get(wish.key)
        if found is not None and found.digest != wish.digest:
            self._answer(waiter, _reused(wish.key))
            return
        if found is None:
            if self._effects.congested or len(self._open) >= REQUESTS_OPEN_MAX:
                self._answer(waiter, overloaded())
                return
            found = self._open[wish.key] = _Open(wish.digest)
            self._effects.publish([wish.record], partial(self._written, wish.key), blobs=wish.blobs)
        found.waiters[waiter.call] = waiter
        self._calls[waiter.call] = wish.key
        self._effects.at(_answer_at(now.mono_ms, deadline_ms), partial(self._expire, waiter.call))
        if found.durable and waiter.durable_only:
            self._tell_durable(wish.key, found, waiter)

    def decided(self, key: str, answer: Answer) -> None:
        """The log shows the answer to a request, ours or another gateway's."""
        if answer.code == "request_id_reused":
            self._reused(key, answer)
            return
        found = self._open.pop(key, None)
        for waiter in found.waiters.values() if found else ():
            assert found is not None
            self._tell(waiter, key, found.digest, answer)

    def forget(self, call: int) -> None:
        """The caller has gone; its request goes on."""
        key = self._calls.pop(call, None)
        if key is not None:
            found = self._open[key]
            del found.waiters[call]
            self._close_if_done(key, found)

    # --- outcomes

    def _written(self, key: str, error: PortError | None, _now: Now) -> None:
        found = self._open.get(key)
        if found is None:
            return  # The log showed the decision first, which says that it was durable.
        if error is not None:
            del self._open[key]
            for waiter in found.waiters.values():
                self._answer(waiter, not_stored(error, key))
            return
        found.durable = True
        for waiter in [each for each in found.waiters.values() if each.durable_only]:
            self._tell_durable(key, found, waiter)
        self._close_if_done(key, found)

    def _expire(self, call: int, _now: Now) -> None:
        key = self._calls.get(call)
        if key is None:
            return  # It was answered in time.
        found = self._open[key]
        waiter = found.waiters[call]
        if found.durable:
            self._tell_durable(key, found, waiter)
            return
        del found.waiters[call]
        self._answer(waiter, _too_slow(key))

    def _reused(self, key: str, answer: Answer) -> None:
        base = key.rpartition("#")[0]
        found = self._open.get(base)
        if found is not None and reused_key(base, found.digest) == key:
            del self._open[base]
            for waiter in found.waiters.values():
                self._answer(waiter, _refused(answer))

    def _tell(self, waiter: Waiter, key: str, digest: bytes, answer: Answer) -> None:
        if answer.digest != digest:
            self._answer(waiter, _reused(key))
        elif answer.code:
            self._answer(waiter, _refused(answer))
        else:
            try:
                result: Result = waiter.accepted()
            except Refusal as gone:  # Accepted, and removed by a later decision of the same entry.
                result = gone
            self._answer(waiter, result)

    def _tell_durable(self, key: str, found: _Open, waiter: Waiter) -> None:
        del found.waiters[waiter.call]
        self._answer(waiter, waiter.durable() if waiter.durable is not None else _undecided(key))
        self._close_if_done(key, found)

    def _close_if_done(self, key: str, found: _Open) -> None:
        if found.durable and not found.waiters:
            self._open.pop(key, None)

    def _answer(self, waiter: Waiter, result: Result) -> None:
        self._calls.pop(waiter.call, None)
        self._effects.answers.append((waiter.call, result))


def _answer_at(now_ms: int, deadline_ms: int) -> int:
    if not deadline_ms:
        return now_ms + WAIT_MAX_MS
    left = max(deadline_ms - now_ms, 0)
    margin = min(max(left // 10, MARGIN_MIN_MS), MARGIN_MAX_MS)
    return now_ms + min(max(left - margin, 0), WAIT_MAX_MS)


def _again(key: str) -> str:
    return f"send it again with request_id {key.partition('/')[2]!r}: it is decided once, however often it is sent"


def not_stored(error: PortError, key: str = "") -> Refusal:
    """What a caller is told when a write failed: nobody knows what was stored, so the same is sent again."""
    advice = _again(key) if key else "send it again"
    if isinstance(error, StorageFullError):
        return Refusal(
            Status.UNAVAILABLE,
            "storage_full",
            f"the cell cannot write: {error}. Once there is space, {advice}",
            retry_after_ms=RETRY_AFTER_FULL_MS,
        )
    return Refusal(
        Status.UNAVAILABLE,
        "log_unavailable",
        f"the cell's log cannot be written now ({error}); {advice}",
        retry_after_ms=RETRY_AFTER_MS,
    )


def _too_slow(key: str) -> Refusal:
    return Refusal(
        Status.UNAVAILABLE,
        "not_durable_in_time",
        f"the cell's log did not confirm the request in time; {_again(key)}",
        retry_after_ms=RETRY_AFTER_MS,
    )


def _undecided(key: str) -> Refusal:
    return Refusal(
        Status.DEADLINE_EXCEEDED,
        "durable_not_decided",
        f"the request is durable and will be decided, but no leader did within the deadline; {_again(key)}",
        retry_after_ms=RETRY_AFTER_MS,
    )


def overloaded() -> Refusal:
    """What a caller is told while the log does not take what waits for it already."""
    return Refusal(
        Status.UNAVAILABLE,
        "overloaded",
        "too much waits for the cell's log already; send the same again a little later",
        retry_after_ms=RETRY_AFTER_MS,
    )


def _reused(key: str) -> Refusal:
    return Refusal(
        Status.ALREADY_EXISTS,
        "request_id_reused",
        f"request_id {key.partition('/')[2]!r} was used before for another request; "
        "choose a new one, or send exactly the same to get the first answer",
        violations=(Violation("request_id", "used before with other content"),),
    )


def _refused(answer: Answer) -> Refusal:
    violations = (Violation(answer.field, answer.message),) if answer.field else ()
    status = _STATUS.get(answer.code, Status.FAILED_PRECONDITION)
    return Refusal(status, answer.code, answer.message, violations=violations)
