"""The plan of one stack: names, ports and identities, and the configuration they give.

Pure: values in, text out. It starts nothing and touches no file but the broker template.
"""

import json
import string
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from compose.local.stack.ports import HOST

KAFKA: Final = Path(__file__).parents[2] / "kafka"
TEMPLATE: Final = KAFKA / "broker.properties"
LOGGING: Final = KAFKA / "log4j2.properties"
FORMAT: Final = 1
PORTS_OF_BROKER: Final = 5
PORTS_OF_ETCD: Final = 3
LISTENERS: Final = ("CLIENT", "BROKER", "CONTROLLER", "OUTER")
# Measured: an idle broker stays under this heap with 300 topics; a small heap keeps RSS honest.
JVM: Final = (
    "-Xms64m",
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
)


@dataclass(frozen=True, slots=True)
class Broker:
    """The ports of one broker; `client` is the one for programs.

    A fault proxy may listen on `outer_advertised` and forward to `outer`: a program that
    bootstraps from there reaches this broker through that proxy only.
    """

    name: str
    node_id: int
    client: int
    broker: int
    controller: int
    outer: int
    outer_advertised: int

    @property
    def listens(self) -> tuple[int, ...]:
        return (self.client, self.broker, self.controller, self.outer)


@dataclass(frozen=True, slots=True)
class Etcd:
    """`client` speaks gRPC only; `http` serves /health and /metrics."""

    name: str
    client: int
    peer: int
    http: int

    @property
    def listens(self) -> tuple[int, ...]:
        return (self.client, self.peer, self.http)


Member = Broker | Etcd


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything that must stay the same while the stack's data lives."""

    cluster_id: str
    brokers: tuple[Broker, ...]
    etcd: tuple[Etcd, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        return (*self.etcd, *self.brokers)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{broker.client}" for broker in self.brokers)

    @property
    def endpoints(self) -> str:
        return ",".join(f"{HOST}:{member.client}" for member in self.etcd)


def lay_out(*, cluster_id: str, brokers: int, etcd: int, ports: Sequence[int]) -> Layout:
    """Name the members and deal the ports out, PORTS_OF_BROKER and PORTS_OF_ETCD to each."""
    assert len(ports) == ports_needed(brokers=brokers, etcd=etcd)
    dealt = iter(ports)
    return Layout(
        cluster_id=cluster_id,
        brokers=tuple(
            Broker(f"kafka-{n}", n, *(next(dealt) for _ in range(PORTS_OF_BROKER)))
            for n in range(1, brokers + 1)
        ),
        etcd=tuple(
            Etcd(f"etcd-{n}", *(next(dealt) for _ in range(PORTS_OF_ETCD)))
            for n in range(1, etcd + 1)
        ),
    )


def ports_needed(*, brokers: int, etcd: int) -> int:
    return brokers * PORTS_OF_BROKER + etcd * PORTS_OF_ETCD


def fixed_ports(*, brokers: int, etcd: int) -> list[int]:
    """The ports that people know: Kafka 9092, 9192, ..., etcd 2379, 2479, ..."""
    kafka = [9092 + 100 * n + k for n in range(brokers) for k in range(PORTS_OF_BROKER)]
    return kafka + [2379 + 100 * n + k for n in range(etcd) for k in range(PORTS_OF_ETCD)]


def render(layout: Layout) -> str:
    return json.dumps({"format": FORMAT, **asdict(layout)}, indent=2) + "\n"


def parse(text: str) -> Layout:
    """The inverse of `render`. Raises ValueError when the text is not one."""
    try:
        saved: dict[str, Any] = json.loads(text)
        if saved.pop("format") != FORMAT:
            raise ValueError("another version wrote it")
        return Layout(
            cluster_id=saved["cluster_id"],
            brokers=tuple(Broker(**broker) for broker in saved["brokers"]),
            etcd=tuple(Etcd(**member) for member in saved["etcd"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a saved layout: {error!r}") from error


def broker_properties(layout: Layout, broker: Broker, *, data: Path) -> str:
    """Fill the broker template: as many replicas as brokers, three at most; two must have a write."""
    ports = dict(zip(LISTENERS, broker.listens, strict=True))
    advertised = {
        "CLIENT": broker.client,
        "BROKER": broker.broker,
        "OUTER": broker.outer_advertised,
    }
    return string.Template(TEMPLATE.read_text()).substitute(
        node_id=broker.node_id,
        voters=",".join(f"{b.node_id}@{HOST}:{b.controller}" for b in layout.brokers),
        listeners=_addresses(ports),
        advertised=_addresses(advertised),
        data=data,
        replicas=min(3, len(layout.brokers)),
        min_isr=2 if len(layout.brokers) > 2 else 1,
    )


def _addresses(ports: dict[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())


def java_command(
    java: Path, jars: Path, *, home: Path, main: str, options: Sequence[str]
) -> list[str]:
    return [
        str(java),
        *JVM,
        f"-XX:ErrorFile={home}/crash-%p.log",
        f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
        "-cp",
        f"{jars}/*",
        main,
        *options,
    ]


def etcd_command(program: Path, layout: Layout, member: Etcd, *, data: Path) -> list[str]:
    peers = ",".join(f"{m.name}=http://{HOST}:{m.peer}" for m in layout.etcd)
    options = {
        "name": member.name,
        "data-dir": str(data),
        "listen-client-urls": f"http://{HOST}:{member.client}",
        "advertise-client-urls": f"http://{HOST}:{member.client}",
        "listen-client-http-urls": f"http://{HOST}:{member.http}",
        "listen-peer-urls": f"http://{HOST}:{member.peer}",
        "initial-advertise-peer-urls": f"http://{HOST}:{member.peer}",
        "initial-cluster": peers,
        "initial-cluster-token": layout.cluster_id,
        "log-level": "warn",
        "log-format": "console",
    }
    return [str(program), *(f"--{key}={value}" for key, value in options.items())]
