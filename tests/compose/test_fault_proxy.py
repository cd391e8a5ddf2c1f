"""The fault proxy does to a connection what each toxic says, and nothing when it has none."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.fixtures.fault_proxy import (
    HOST,
    Bandwidth,
    FaultProxy,
    Latency,
    LimitData,
    ResetPeer,
    Slicer,
    SlowClose,
    Timeout,
)

WAIT_S = 10.0


class Echo:
    """A server that sends back what it gets."""

    def __init__(self) -> None:
        self.listener = socket.create_server((HOST, 0))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with ExitStack() as stack:
        echo = Echo()
        stack.callback(echo.listener.close)
        yield stack.enter_context(FaultProxy(upstream_port=echo.port))


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=WAIT_S)


def exactly(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            break
        parts += part
    return parts


def test_without_toxics_everything_passes_and_an_end_is_an_end(proxy: FaultProxy) -> None:
    data = bytes(range(256)) * 4_000
    with connect(proxy) as connection:

        def send() -> None:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        assert exactly(connection, len(data)) == data
        assert connection.recv(1) == b""
        sender.join()
    assert proxy.passed == {"upstream": len(data), "downstream": len(data)}


@pytest.mark.parametrize("toxic", [Latency(300), Bandwidth(rate_kib=0.01)])
def test_a_delay_delays_a_connection_that_was_open_before(
    proxy: FaultProxy, toxic: Latency | Bandwidth
) -> None:
    with connect(proxy) as connection:
        connection.sendall(b"one")
        assert exactly(connection, 3) == b"one"
        proxy.add(toxic, "upstream")
        began = time.monotonic()
        connection.sendall(b"two")
        assert exactly(connection, 3) == b"two"
        assert time.monotonic() - began > 0.25


def test_a_timeout_lets_nothing_pass_one_way_and_the_connection_stays(proxy: FaultProxy) -> None:
    with connect(proxy) as connection:
        proxy.add(Timeout(), "downstream")
        connection.sendall(b"lost")
        while proxy.passed["upstream"] < 4:
            threading.Event().wait(0.01)
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        proxy.heal()
        connection.settimeout(WAIT_S)
        connection.sendall(b"kept")
        assert exactly(connection, 4) == b"kept"


def test_a_timeout_with_an_end_closes_the_connection(proxy: FaultProxy) -> None:
    proxy.add(Timeout(100), "upstream")
    with connect(proxy) as connection:
        connection.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_a_reset_is_a_reset(proxy: FaultProxy) -> None:
    proxy.add(ResetPeer(), "downstream")
    with connect(proxy) as connection:
        connection.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_a_limit_lets_so_many_bytes_pass(proxy: FaultProxy) -> None:
    proxy.add(LimitData(5), "upstream")
    with connect(proxy) as connection:
        connection.sendall(b"abcdefgh")
        with suppress(ConnectionResetError):
            exactly(connection, 8)
    assert proxy.passed["upstream"] == 5


def test_slices_arrive_whole_and_in_order(proxy: FaultProxy) -> None:
    proxy.add(Slicer(average_size=7, size_variation=3), "upstream")
    data = bytes(range(256)) * 10
    with connect(proxy) as connection:
        connection.sendall(data)
        assert exactly(connection, len(data)) == data


def test_a_slow_close_holds_the_end_back(proxy: FaultProxy) -> None:
    proxy.add(SlowClose(300), "upstream")
    with connect(proxy) as connection:
        began = time.monotonic()
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
        assert time.monotonic() - began > 0.25


def test_a_cut_resets_what_is_open_and_welcomes_the_next(proxy: FaultProxy) -> None:
    with connect(proxy) as connection:
        connection.sendall(b"one")
        assert exactly(connection, 3) == b"one"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with connect(proxy) as connection:
        connection.sendall(b"two")
        assert exactly(connection, 3) == b"two"


def test_down_refuses_and_up_takes_the_same_port(proxy: FaultProxy) -> None:
    proxy.down()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.up()
    with connect(proxy) as connection:
        connection.sendall(b"back")
        assert exactly(connection, 4) == b"back"


def test_nobody_upstream_is_seen_as_a_closed_connection() -> None:
    free = socket.create_server((HOST, 0))
    port = free.getsockname()[1]
    free.close()
    with (
        FaultProxy(upstream_port=port) as proxy,
        connect(proxy) as connection,
        suppress(ConnectionResetError),
    ):
        assert connection.recv(1) == b""
