"""The host on streams, in memory: what it takes, when it begins, when it judges, and when it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from services.health.host import Host, serve
from services.health.metrics import Observer
from services.health.settings import HealthSettings
from services.runtime.adapters.faust_streams import FaustStreams, OneActiveMember
from services.runtime.adapters.kafka_client import KafkaSettings
from services.runtime.patience import Patience
from services.runtime.ports import InputRecord, PortError
from services.runtime.settings import SettingsError
from services.runtime.streams import Place, StreamHandler, StreamsEndedError
from services.runtime.telemetry import Telemetry
from services.runtime.wiring import open_streams
from tests.fakes.memory import MemoryInputs
from tests.services.health.bed import TABLE
from tests.services.health.stage import RULES, Stage
from tests.statemachines.world import CELL

STALLED_MS = 30_000
ALL: frozenset[Place] = frozenset({("beats", 0), ("signals", 0), ("progress", 0)})


class Bringer:
    """Streams in memory: brings what is stored from where it is, once told to."""

    def __init__(self, stage: Stage, host: Host) -> None:
        self.stage, self.host = stage, host
        self.at: dict[Place, int] = {}

    async def bring(self, *places: Place) -> None:
        for place in places or sorted(ALL):
            for record in self.stage.cell.records[place][self.at.get(place, 0) :]:
                await self.host.take(record)
                self.at[place] = record.offset + 1


class Show:
    """A stage whose records are brought to a host."""

    def __init__(self, **ports: Any) -> None:
        self.stage = Stage()
        self.stage.log()
        self.host = Host(
            CELL, self.stage.ports(**ports), RULES, TABLE, self.stage.notes, stalled_ms=STALLED_MS
        )
        self.bringer = Bringer(self.stage, self.host)

    async def begin(self) -> None:
        self.host.assigned(ALL)
        await self.host.turn()
        assert self.host.active

    async def run(self, for_ms: int, beating: Sequence[str] = (), *, brought: bool = True) -> None:
        for second in range(for_ms // 1000):
            self.stage.clock.advance(1_000)
            self.stage.beat(*(beating if second % 2 else ()))
            self.stage.log()
            if brought:
                await self.bringer.bring()
            await self.host.turn()


async def test_a_silent_node_is_gone_and_one_that_beats_is_not() -> None:
    show = Show()
    show.stage.world.node("n2")
    show.stage.log()
    await show.begin()
    await show.run(14_000, beating=["n2"])
    assert {key for key, _ in show.stage.verdicts()} == {b"n1"}
    assert set(show.stage.kinds()) == {"node_suspect", "node_gone"}


async def test_a_member_that_stands_by_judges_nobody_and_keeps_up_with_the_log() -> None:
    show = Show()
    await show.run(30_000, brought=False)
    show.stage.world.node("n2")
    show.stage.log()
    await show.host.turn()
    assert show.stage.verdicts() == []
    assert set(show.host.judge.cluster.nodes) == {"n1", "n2"}
    assert not show.host.judge.cluster.take_touched().nodes, "what nobody asks for must not pile up"
    assert {name: value for name, _, value in show.host.gauges()}["health_active"] == 0


async def test_what_was_said_before_we_began_is_no_sign_of_life_and_is_not_said_twice() -> None:
    show = Show()
    for _ in range(5):
        show.stage.beat("n1")
    await show.begin()
    await show.bringer.bring()
    assert show.stage.notes.counts == {}
    show.stage.beat("n1")
    show.bringer.at = {}  # Brought again from the beginning, as a group may.
    await show.bringer.bring()
    show.bringer.at = {}
    await show.bringer.bring()
    assert show.stage.notes.counts == {"beats": 1}


async def test_when_partitions_come_back_everyone_has_a_whole_window() -> None:
    show = Show()
    await show.begin()
    await show.run(9_000)
    show.host.assigned(frozenset())
    assert not show.host.active
    await show.begin()
    await show.run(9_000)
    assert "node_gone" not in show.stage.kinds()
    await show.run(6_000)
    assert show.stage.kinds()[-1] == "node_gone"


async def test_signals_of_before_are_read_again_with_their_age() -> None:
    show = Show()
    show.stage.signal("NIC_LINK", nic="ib0", code="down", at_ms=show.stage.clock.wall_ms() - 40_000)
    show.stage.cell.drop("signals", 0, before=0)
    await show.begin()
    await show.run(2_000, beating=["n1"])
    assert show.stage.kinds() == ["nic"]


async def test_signals_that_retention_passed_are_not_missed() -> None:
    show = Show()
    show.stage.signal("XID", device=1, code="79")
    show.stage.signal("XID", device=2, code="79")
    show.stage.cell.drop("signals", 0, before=1)
    await show.begin()
    await show.run(1_000, beating=["n1"])
    assert [verdict.device.index for _, verdict in show.stage.verdicts()] == [2]


async def test_it_does_not_begin_with_a_part_of_the_partitions() -> None:
    show = Show()
    show.host.assigned(ALL - {("beats", 0)})
    await show.host.turn()
    assert not show.host.active


async def test_a_record_waits_until_we_have_begun_and_is_dropped_when_it_is_anothers() -> None:
    show = Show()
    show.host.assigned(ALL)
    waiting = asyncio.create_task(show.host.take(InputRecord("beats", 7, 0, b"", b"")))
    await asyncio.sleep(0)
    assert not waiting.done()
    await show.host.turn()
    await waiting
    assert show.stage.notes.counts == {}


async def test_nobody_is_judged_while_records_are_on_their_way() -> None:
    show = Show()
    await show.begin()
    await show.run(4_000, beating=["n1"])
    await show.run(20_000, beating=["n1"], brought=False)
    assert show.host.behind > 0
    assert show.stage.verdicts() == []
    await show.run(4_000, beating=["n1"])
    assert show.stage.verdicts() == []


async def test_a_stream_that_stands_still_ends_the_process() -> None:
    show = Show()
    await show.begin()
    with pytest.raises(StreamsEndedError, match=r"beats/0: nothing was brought for 3\d s though"):
        await show.run(STALLED_MS + 3_000, brought=False)


async def test_our_own_stall_is_not_taken_for_one_of_the_stream() -> None:
    show = Show()
    await show.begin()
    await show.run(2_000, brought=False)
    show.stage.clock.advance(2 * STALLED_MS)
    await show.run(STALLED_MS - 2_000, brought=False)
    assert show.host.active


class Broken(MemoryInputs):
    """Ends cannot be asked for now."""

    away = False

    def end(self, topic: str, partition: int) -> int:
        if self.away:
            raise PortError("no broker: start it")
        return super().end(topic, partition)


async def test_after_bad_weather_the_next_turn_goes_on() -> None:
    stage = Stage()
    stage.log()
    inputs = Broken(stage.cell)
    host = Host(CELL, stage.ports(inputs=inputs), RULES, TABLE, stage.notes, stalled_ms=STALLED_MS)
    host.assigned(ALL)
    inputs.away = True
    with pytest.raises(PortError):
        await host.turn()
    inputs.away = False
    await host.turn()
    assert host.active


async def test_a_bug_while_observing_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    show = Show()
    await show.begin()

    def broken(_record: InputRecord) -> list[Any]:
        raise ZeroDivisionError

    monkeypatch.setattr(show.host.judge, "observe", broken)
    show.stage.beat("n1")
    await show.bringer.bring()
    with pytest.raises(ZeroDivisionError):
        await show.host.turn()


class Ending:
    """Streams that give up."""

    async def run(self, topics: Sequence[str], handler: StreamHandler) -> None:
        assert topics == ["beats", "signals", "progress"]
        handler.assigned(frozenset())
        await asyncio.sleep(0)
        raise StreamsEndedError("the framework ended")


async def test_the_end_of_the_streams_is_the_end_of_the_process() -> None:
    telemetry = Telemetry(HealthSettings(), "health")
    observer = Observer(telemetry)
    patience = Patience(60, observer.failing)
    try:
        with pytest.raises(StreamsEndedError, match="the framework ended"):
            await serve(Ending(), lambda: Show().host, observer, patience, lambda: False)
        with pytest.raises(StreamsEndedError):  # It is no weather.
            patience.failed(StreamsEndedError("ended"))
    finally:
        telemetry.close()


# --- Faust


class Cluster:
    """Metadata of a broker cluster."""

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return {"c.beats": {0, 1, 2}, "c.signals": {0}}.get(topic)


def assign(before: dict[str, dict[str, list[int]]]) -> dict[str, dict[str, list[int]]]:
    """What each member gets, given what it had."""
    app: Any = SimpleNamespace(
        tables=SimpleNamespace(changelog_topics=set(), data={}),
        conf=SimpleNamespace(canonical_url="http://host"),
    )
    members = {}
    for member, actives in before.items():
        assignor = OneActiveMember(app)
        assignor._assignment.actives = actives
        members[member] = assignor.metadata({"c.beats", "c.signals"})
    found = OneActiveMember(app)._perform_assignment(Cluster(), members)
    return {member: dict(each.assignment) for member, each in found.items()}


EVERYTHING = {"c.beats": [0, 1, 2], "c.signals": [0]}


def test_one_member_gets_everything_and_the_others_stand_by() -> None:
    assert assign({"b": {}, "a": {}}) == {"a": EVERYTHING, "b": {}}


def test_the_member_that_had_everything_keeps_it() -> None:
    assert assign({"a": {}, "b": EVERYTHING}) == {"a": {}, "b": EVERYTHING}


def test_two_that_think_they_had_everything_are_settled() -> None:
    assert assign({"b": EVERYTHING, "a": EVERYTHING}) == {"a": EVERYTHING, "b": {}}


def test_the_embedded_cell_has_no_streams() -> None:
    with pytest.raises(SettingsError, match="streams need a broker"):
        open_streams(HealthSettings(), "health")
    assert HealthSettings().hosted_by == "loop"
    assert HealthSettings(log="kafka").hosted_by == "faust"
    assert HealthSettings(log="kafka", host="loop").hosted_by == "loop"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"security.protocol": "TLS"}, "security.protocol 'TLS' is not one"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "MAGIC"}, "'MAGIC' is not one of"),
        ({"ssl.keystore.location": "/k"}, "ssl.keystore.location has no counterpart in Faust"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/absent"}, "No such file"),
    ],
)
def test_options_that_faust_cannot_take_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        FaustStreams(KafkaSettings("b:1", "c", options=options), "c.health")


def test_sasl_and_tls_reach_faust() -> None:
    options = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "SCRAM-SHA-512",
               "sasl.username": "u", "sasl.password": "p"}  # fmt: skip
    streams = FaustStreams(KafkaSettings("b:1", "c", options=options), "c.health")
    security = streams._security
    assert (security.username, security.password) == ("u", "p")
    assert security.ssl_context is not None
