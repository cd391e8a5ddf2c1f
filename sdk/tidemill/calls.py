"""How a call is made: one channel, the token, a deadline on every call, and the one retry policy.

Only calls that may be repeated are: reads, and changes that carry a request id made once.
It must never know what a call means.
"""

from __future__ import annotations

import random
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import grpc

from tidemill.context import Context
from tidemill.errors import TidemillError, from_rpc, retry_after_s

Request = TypeVar("Request")
Response = TypeVar("Response")
Answer_co = TypeVar("Answer_co", covariant=True)

# Things asked for at once in a long list.
PAGE = 1000
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
RETRYABLE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED})
# Twice what keepalive needs to find out, above: what is up for longer has answered it.
PROVEN_UP_S = 60.0
# A stream is opened anew now and then, so that an end that nobody noticed and an expired grant are noticed.
STREAM_DEADLINE_S = 3600.0
REOPENABLE = RETRYABLE | {grpc.StatusCode.DEADLINE_EXCEEDED}


@dataclass(slots=True)
class Backoff:
    """Waits that double from `first_s` up to `cap_s`, each scaled by chance so that clients spread out."""

    first_s: float = 0.1
    cap_s: float = 2.0
    tries: int = 0

    def next_s(self) -> float:
        """The next wait, in seconds."""
        bound = min(self.cap_s, self.first_s * float(2 ** min(self.tries, 16)))
        self.tries += 1
        scale: float = random.uniform(0.5, 1.0)  # noqa: S311  # spreading load is no secret
        return bound * scale


class Patience:
    """For how long a lost stream is opened anew.

    The clock starts with a loss, and an answer ends it. So does a stream that was up for longer than the patience, and
    than a connection to a frozen gateway seems to be: it was quiet, and not away. Call `opened` at each start,
    `answered` for each answer, `lost` at each end.
    """

    def __init__(
        self, give_up_after_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._give_up_after_s, self._clock = give_up_after_s, clock
        self._backoff = Backoff()
        self._opened_at = 0.0
        self._lost_at: float | None = None

    def opened(self) -> None:
        """A stream begins."""
        self._opened_at = self._clock()

    def answered(self) -> None:
        """Something came."""
        self._backoff.tries, self._lost_at = 0, None

    def lost(self) -> float | None:
        """How long to wait before the next try, in seconds; None: it is time to give up."""
        now = self._clock()
        if now - self._opened_at > max(self._give_up_after_s, PROVEN_UP_S):
            self.answered()
        if self._lost_at is None:
            self._lost_at = now
        return None if now >= self._lost_at + self._give_up_after_s else self._backoff.next_s()


def open_channel(context: Context) -> grpc.Channel:
    """A channel to the gateway: plain text, or TLS for "tls://HOST:PORT" and wherever a CA is configured.

    Of several gateways, "A:1,B:1", one that answers is used, and another when it is gone.
    """
    address = context.gateway.removeprefix("tls://")
    first, *others = address.split(",")
    options = OPTIONS
    if others:
        options = (*OPTIONS, ("grpc.default_authority", first))
        address = "ipv4:" + ",".join(_numeric(each) for each in (first, *others))
    if not context.gateway.startswith("tls://") and not context.ca:
        return grpc.insecure_channel(address, options=options)
    roots = Path(context.ca).expanduser().read_bytes() if context.ca else None
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(roots), options=options)


def _numeric(address: str) -> str:
    """GRPC takes a list of addresses, not of names. A name that is not known now stays as it is, and is never reached."""
    host, _, port = address.strip().rpartition(":")
    try:
        found = socket.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except OSError:
        return address
    return "{}:{}".format(*found[0][4])


class Streamed(Protocol[Answer_co]):
    """A call that answers many times."""

    def __iter__(self) -> Iterator[Answer_co]: ...
    def cancel(self) -> bool: ...


class Caller:
    """Makes calls to one gateway. Safe to use from many threads."""

    def __init__(self, context: Context, *, deadline_s: float) -> None:
        self.context, self.deadline_s = context, deadline_s
        self.channel = open_channel(context)
        self.metadata = (("authorization", f"Bearer {context.token}"),) if context.token else ()

    def close(self) -> None:
        """Give back the connection; calls under way end with CANCELLED."""
        self.channel.close()

    def unary(
        self,
        method: grpc.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        *,
        what: str,
        hint: str = "",
        deadline_s: float | None = None,
    ) -> Response:
        """Call and answer, trying again within the deadline: so only calls that may be repeated.

        Raises TidemillError; `hint` is the next command where the failure itself suggests none.
        """
        ends = time.monotonic() + (self.deadline_s if deadline_s is None else deadline_s)
        backoff = Backoff()
        while True:
            left = max(0.001, ends - time.monotonic())
            try:
                return method(request, timeout=left, metadata=self.metadata)
            except grpc.RpcError as error:
                asked_s = retry_after_s(error)
                wait_s = max(asked_s, backoff.next_s())
                again = error.code() in RETRYABLE or asked_s > 0
                if not again or time.monotonic() + wait_s >= ends:
                    raise self.failure(error, what, hint) from error
            time.sleep(wait_s)

    def resuming(
        self,
        start: Callable[[], Streamed[Response]],
        *,
        what: str,
        give_up_after_s: float,
    ) -> Iterator[Response]:
        """A stream that is opened anew when the connection is lost; closing the iterator ends the call.

        Gives up with TidemillError when it stays lost for `give_up_after_s`.
        """
        patience = Patience(give_up_after_s)
        while True:
            patience.opened()
            call = start()
            try:
                for response in call:
                    patience.answered()
                    yield response
                return
            except grpc.RpcError as error:
                wait_s = self.before_reopening(error, patience, what=what)
            finally:
                call.cancel()
            time.sleep(wait_s)

    def before_reopening(self, error: grpc.RpcError, patience: Patience, *, what: str) -> float:
        """How long to wait after this end of a stream, in seconds. Raises TidemillError when it is one for good."""
        wait_s = patience.lost() if error.code() in REOPENABLE else None
        if wait_s is None:
            raise self.failure(error, what) from error
        return wait_s

    def failure(self, error: grpc.RpcError, what: str, hint: str = "") -> TidemillError:
        """The typed error for a failed call."""
        failure = from_rpc(error, what, gateway=self.context.gateway)
        failure.next_command = failure.next_command or hint
        return failure


def new_id() -> str:
    """A fresh request id."""
    return uuid.uuid4().hex
