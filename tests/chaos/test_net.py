"""Hosts as namespaces: what the kernel shows inside them, what a pulled cable and a lost way do, and that nothing stays."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.net import CONTROL, HUB_ADDRESS, MTU, SMALL_MTU, Network, NetworkError, missing, sweep
from chaos.net_clock import SteppedClock
from chaos.net_disk import Disk
from chaos.net_door import Door

Make = Callable[..., Network]
WITHIN_S = 10.0
_LISTEN = (
    "import socket,sys; s=socket.create_server((sys.argv[1],7000)); print('ready',flush=True)\n"
    "while True: s.accept()"
)
_CONNECT = (
    "import socket,sys; socket.create_connection((sys.argv[1],7000),timeout=float(sys.argv[2]))"
)


def namespaces_named(part: str) -> list[str]:
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    return [line for line in names.splitlines() if part in line]


def run_on(network: Network, number: int, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*network.inside(number), *words], capture_output=True, text=True, check=False, timeout=60
    )


def states(network: Network, number: int) -> dict[str, bool]:
    """As the agent's own monitor sees its interfaces there."""
    look = (
        "from services.agent.links import Links; import json, sys\n"
        "print(json.dumps([(c.nic, c.up) for c in Links(sys.argv[1:]).look()]))"
    )
    said = run_on(network, number, sys.executable, "-c", look, *network.nics)
    return dict(json.loads(said.stdout))


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.05)


def test_what_is_missing_is_named() -> None:
    assert "root" in missing(user=1000)
    assert missing(user=0, which=lambda _: None) == (
        "commands are missing: apt-get install iproute2 mount nftables"
    )
    assert missing(user=0, which=lambda tool: tool) == ""


def test_the_agents_monitor_sees_a_pulled_cable_and_no_other(network: Make) -> None:
    net = network(hosts=2, rails=3)
    until(lambda: all(states(net, 0).values()))
    net.link(0, ["ib1"], up=False)
    until(lambda: states(net, 0) == {"ib0": True, "ib1": False, "ib2": True})
    assert all(states(net, 1).values())
    net.link(0, ["ib1"], up=True)
    until(lambda: all(states(net, 0).values()))


def reaches(net: Network, source: int, target: str) -> bool:
    return run_on(net, source, sys.executable, "-c", _CONNECT, target, "1").returncode == 0


def test_a_way_that_is_lost_is_lost_on_that_interface_only(network: Make) -> None:
    net = network(hosts=2, rails=2)
    rails = [net.address(1, rail) for rail in range(2)]
    servers = [
        subprocess.Popen(
            [*net.inside(1), sys.executable, "-c", _LISTEN, address],
            stdout=subprocess.PIPE,
        )
        for address in rails
    ]
    try:
        for server in servers:
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        assert [reaches(net, 0, address) for address in rails] == [True, True]
        net.drop(0, ["ib0"], "up")
        assert [reaches(net, 0, address) for address in rails] == [False, True]
        assert states(net, 0) == {"ib0": True, "ib1": True}, "a drop is no pulled cable"
        net.pass_again(0, ["ib0"])
        assert reaches(net, 0, rails[0])
        net.drop(0, [CONTROL], "both")
        assert [reaches(net, 0, address) for address in rails] == [True, True]
        with pytest.raises(NetworkError, match="no direction 'sideways'"):
            net.drop(0, ["ib1"], "sideways")
    finally:
        for server in servers:
            server.kill()
            server.communicate()


def drops(network: Network, number: int) -> dict[str, int]:
    """As the agent's own monitor counts them there."""
    look = (
        "from services.agent.counters import Counters, Line, Table; import json, sys\n"
        "from services.agent.inventory import nics\n"
        "table = Table((Line('rx_dropped', over_s=10, most=0),))\n"
        "seen = Counters(table, nics(sys.argv[1:])).read()\n"
        "print(json.dumps([(r.nic, r.counts['rx_dropped']) for r in seen]))"
    )
    said = run_on(network, number, sys.executable, "-c", look, *network.nics)
    return dict(json.loads(said.stdout))


def test_what_is_too_large_for_an_interface_is_dropped_there_and_seen_by_the_agents_monitor(
    network: Make,
) -> None:
    net = network(hosts=2, rails=2)
    until(lambda: all(states(net, 0).values()) and all(states(net, 1).values()))
    send = (
        "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "for _ in range(50): s.sendto(bytes(1024), (sys.argv[1], 9))"
    )

    def hear(rail: int) -> None:
        assert run_on(net, 1, sys.executable, "-c", send, net.address(0, rail)).returncode == 0

    net.mtu(0, ["ib1"], SMALL_MTU)
    hear(0)
    hear(1)
    until(lambda: drops(net, 0) == {"ib0": 0, "ib1": 50})
    net.mtu(0, ["ib1"], MTU)
    hear(1)
    assert drops(net, 0) == {"ib0": 0, "ib1": 50}
    assert drops(net, 1) == {"ib0": 0, "ib1": 0}


def test_a_host_reaches_this_process_only_through_the_door(network: Make) -> None:
    net = network(hosts=1, rails=1)
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        gateway.settimeout(WITHIN_S)
        echo = threading.Thread(target=_echo_once, args=(gateway,))
        echo.start()
        door = Door(net.hub, HUB_ADDRESS, lambda: ("127.0.0.1", gateway.getsockname()[1]))
        ask = (
            "import socket,sys; host,_,port=sys.argv[1].rpartition(':')\n"
            "s=socket.create_connection((host,int(port)),timeout=5); s.sendall(b'hello'); s.shutdown(1)\n"
            "print(s.makefile().read())"
        )
        try:
            assert run_on(net, 0, sys.executable, "-c", ask, door.address).stdout == "hello\n"
            directly = f"127.0.0.1:{gateway.getsockname()[1]}"
            assert run_on(net, 0, sys.executable, "-c", ask, directly).returncode != 0
        finally:
            door.close()
            echo.join()


def _echo_once(server: socket.socket) -> None:
    peer, _ = server.accept()
    with peer:
        peer.sendall(peer.recv(100))


def test_nothing_is_left_of_a_network(network: Make) -> None:
    net = network(hosts=2, rails=2)
    with subprocess.Popen([*net.inside(0), "sleep", "600"]) as living:
        assert len(namespaces_named(net.hub.removesuffix("hub"))) == 3
        net.remove()
        assert living.wait(WITHIN_S) == -9
    assert namespaces_named(net.hub.removesuffix("hub")) == []
    ours = {path.name for path in Path("/sys/class/net").iterdir()} & {"ib0", CONTROL, "n0ib0"}
    assert not ours, "they never were this machine's"


def test_what_a_killed_run_left_is_swept_away_and_nothing_else(
    namespaces: None, tmp_path: Path
) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    killed, living = f"tidemill-{gone.pid}-n0000", f"tidemill-{os.getpid()}-n0000"
    for name in (killed, living):
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        Disk(tmp_path / "disk", name=killed, mib=1).mount()
        Disk(tmp_path / "other", name=killed.replace("n0000", "n0001"), mib=1).mount()
        assert {killed, killed.replace("n0000", "n0001")} <= set(sweep())
        assert namespaces_named(killed) == [] and len(namespaces_named(living)) == 1
        assert not (tmp_path / "disk").is_mount() and not (tmp_path / "other").is_mount()
    finally:
        subprocess.run(["ip", "netns", "delete", living], check=True)


def test_interfaces_are_named_as_the_inventory_takes_them(network: Make) -> None:
    net = network(hosts=1, rails=2)
    with pytest.raises(NetworkError, match="no interface 'ib7': hosts have ib0, ib1, or all"):
        net.chosen("ib7")
    assert (net.chosen(""), net.chosen("ib1"), net.chosen("all")) == (
        ("ib0",), ("ib1",), ("ib0", "ib1"),
    )  # fmt: skip
    look = "from services.agent.inventory import nics; print([(n.name, n.up) for n in nics(('ib0', 'ib1'))])"
    until(
        lambda: (
            run_on(net, 0, sys.executable, "-c", look).stdout == "[('ib0', True), ('ib1', True)]\n"
        )
    )


def test_a_disk_is_full_to_the_last_byte_and_empty_again(namespaces: None, tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk", name="tidemill-test", mib=1)
    disk.remove()  # Nothing yet: no error.
    try:
        disk.mount()
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "disk/a").write_bytes(b"x")
        disk.empty()
        (tmp_path / "disk/a").write_bytes(b"x")
    finally:
        disk.remove()
    assert not os.path.ismount(tmp_path / "disk")


def test_a_wall_clock_steps_and_clocks_that_only_grow_do_not(
    tmp_path: Path, faketime: Path
) -> None:
    (tmp_path / "looks.py").write_text(
        "import sys, time\n"
        "from services.runtime.adapters.clock import SystemClock\n"
        "clock = SystemClock()\n"
        "for _ in sys.stdin:\n"
        "    time.sleep(0.001)\n"
        "    print(clock.wall_ms(), clock.monotonic_ms(), time.time() * 1000, flush=True)\n"
    )
    clock = SteppedClock(tmp_path / "offset", faketime)
    with subprocess.Popen(
        [sys.executable, "-m", "looks"],
        env={**os.environ, **clock.environment, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None

        def look() -> tuple[float, ...]:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return tuple(map(float, process.stdout.readline().split()))

        before = look()
        clock.step(-3600)
        after = look()
        process.stdin.close()
    wall, grown, fraction = (late - early for early, late in zip(before, after, strict=True))
    assert 0 <= grown < 60_000
    assert abs(wall + 3_600_000 - grown) < 1_000
    assert abs(fraction - wall) < 10
