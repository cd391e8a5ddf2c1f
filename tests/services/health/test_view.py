"""What the detector is told of the fold."""

from __future__ import annotations

from services.health.messages import AttemptKnown, NodeKnown
from services.health.view import View
from tests.services.scheduler.cell import Cell, spec
from tidemill.v1 import common_pb2, verdicts_pb2


def test_a_running_attempt_is_as_old_as_the_log_says() -> None:
    cell = Cell()
    cell.nodes("n1")
    cell.running("a", spec(members=2, hang_after_ms=60_000))
    cell.attach("n2")
    cell.step(after_ms=7_000)
    (known,) = [each for each in View(cell.cluster).everything() if isinstance(each, AttemptKnown)]
    assert known == AttemptKnown("a", 1, 2, 60_000, ("n1", "n1"), 7_000)


def test_a_port_without_a_link_is_named() -> None:
    cell = Cell()
    cell.attach("n1", nics=("ib0", "ib1"), unlinked=("ib1",))
    cell.step()
    (known,) = [each for each in View(cell.cluster).everything() if isinstance(each, NodeKnown)]
    assert known.unlinked == ("ib1",)


def test_an_interface_that_is_ill_because_of_a_counter_is_named_with_it() -> None:
    cell = Cell()
    cell.attach("n1", nics=("ib0", "ib1"))
    cell.step()
    for nic, code in (("ib0", "nic_counter_rate_low"), ("ib1", "port_flaps")):
        cell.verdict(
            verdicts_pb2.NicVerdict(
                node="n1",
                incarnation=1,
                nic=nic,
                condition=verdicts_pb2.CONDITION_DEGRADED,
                reason=common_pb2.Reason(code=code),
            )
        )
    cell.step()
    (known,) = [each for each in View(cell.cluster).everything() if isinstance(each, NodeKnown)]
    assert known.counted == (("ib0", "rate_low"),)
