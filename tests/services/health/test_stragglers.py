"""Who works for longer than the others of a gang, and who is not to blame for it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.health.messages import AttemptGone, NodeSlow, NodeUnfit, Progressed
from services.health.rules import Rules
from tests.services.health.bed import STEP_MS, Bed

ON = tuple(f"n{i}" for i in range(6))
ACTS = Rules(judge="test", straggler_drain_ms=3_600_000)
ROUND_MS = ACTS.straggler_round_ms
FOUND_MS = 6 * ROUND_MS + 2_000
Busy = Callable[[int], int]


class Gang:
    """Says every 5 s what each rank measured; `percent` of the usual time, by node and by member."""

    def __init__(self, bed: Bed, *, on: tuple[str, ...] = ON, each: int = 1) -> None:
        self.bed, self.on, self.each, self.attempt = bed, on, each, 1
        self.nodes: dict[str, int] = {}
        self.members: dict[int, int] = {}
        self.phase = "train"
        bed.start("j", on=on)
        bed.also.append(self._say)

    def again(self, on: tuple[str, ...]) -> None:
        """The next attempt."""
        self.bed.detector.observe(AttemptGone("j"), self.bed.now_ms)
        self.on, self.attempt = on, self.attempt + 1
        self.bed.start("j", on=on, attempt=self.attempt)

    def _say(self, bed: Bed) -> None:
        if bed.now_ms % 5_000 >= STEP_MS:
            return
        for member, node in enumerate(self.on):
            busy = 1_000 * self.nodes.get(node, 100) * self.members.get(member, 100) // 100
            for rank in range(member * self.each, (member + 1) * self.each):
                said = Progressed("j", self.attempt, rank, bed.now_ms, self.phase, busy)
                bed.detector.observe(said, bed.now_ms)


def gang(nodes: int = 8, rules: Rules = ACTS, *, each: int = 1, on: tuple[str, ...] = ON) -> Gang:
    """One that has gone on well for a while."""
    made = Gang(Bed(nodes, rules), each=each, on=on)
    made.bed.run(3 * ROUND_MS)
    return made


def blamed(bed: Bed) -> list[str]:
    return list(dict.fromkeys(verdict.node for verdict in bed.of(NodeUnfit)))


@pytest.mark.parametrize("each", [1, 4])
def test_a_node_that_becomes_slow_is_found_after_five_rounds_and_drained(each: int) -> None:
    job = gang(each=each)
    began_ms = job.bed.now_ms
    job.nodes["n2"] = 125
    job.bed.run(4 * ROUND_MS)
    assert blamed(job.bed) == []
    job.bed.run(FOUND_MS - 4 * ROUND_MS)
    (said,) = job.bed.of(NodeUnfit)
    assert said.node == "n2"
    assert said.drain_ms == ACTS.straggler_drain_ms
    assert "member 2 of j" in said.message
    assert "uncordon n2" in said.message
    assert job.bed.now_ms - began_ms <= FOUND_MS


def test_unless_an_operator_allows_it_a_straggler_is_only_told_of_and_seldom() -> None:
    job = gang(rules=Rules(judge="test"))
    job.nodes["n2"] = 125
    job.bed.run(FOUND_MS + Rules().straggler_tell_ms // 2)
    assert [said.node for said in job.bed.of(NodeSlow)] == ["n2"]
    assert job.bed.of(NodeUnfit) == []


def test_what_is_slow_by_less_than_the_margin_or_not_for_long_is_none() -> None:
    job = gang()
    job.nodes["n2"] = 109
    job.bed.run(FOUND_MS)
    for _ in range(5):
        job.nodes["n3"] = 150
        job.bed.run(3 * ROUND_MS)
        job.nodes["n3"] = 100
        job.bed.run(2 * ROUND_MS)
    assert job.bed.said == []


def test_a_gang_that_is_slow_as_a_whole_moves_nothing() -> None:
    job = gang()
    job.nodes.update(dict.fromkeys(ON, 200))
    job.bed.run(2 * FOUND_MS)
    assert job.bed.said == []


def test_a_member_that_has_more_to_do_is_not_its_nodes_fault_whatever_the_node() -> None:
    job = Gang(Bed(8, ACTS))
    job.members[0] = 160
    job.bed.run(FOUND_MS)
    job.again((*ON[1:], "n6"))
    job.bed.run(FOUND_MS)
    assert job.bed.said == []


@pytest.mark.parametrize("slow", ["n0", "n2"])
def test_a_member_that_has_more_to_do_does_not_hide_a_node_that_is_slow(slow: str) -> None:
    job = Gang(Bed(8, ACTS))
    job.members[0] = 130
    job.bed.run(3 * ROUND_MS)
    job.nodes[slow] = 125
    job.bed.run(FOUND_MS)
    assert blamed(job.bed) == [slow]


def test_a_node_that_is_slow_from_the_start_is_known_by_the_attempt_before() -> None:
    job = gang()
    job.again((*ON[1:], "n6"))
    job.nodes["n6"] = 130
    job.bed.run(FOUND_MS)
    assert blamed(job.bed) == ["n6"]


def test_many_that_are_slow_at_once_are_no_nodes_fault() -> None:
    job = gang()
    job.nodes.update(n1=150, n2=150)
    job.bed.run(FOUND_MS)
    assert job.bed.said == []


def test_three_members_are_too_few_to_tell() -> None:
    job = gang(on=ON[:3])
    job.nodes["n1"] = 200
    job.bed.run(FOUND_MS)
    assert job.bed.said == []


def test_what_is_measured_outside_of_training_does_not_count() -> None:
    job = gang()
    job.phase, job.nodes["n1"] = "save", 300
    job.bed.run(FOUND_MS)
    assert job.bed.said == []


def test_ranks_that_cannot_be_told_apart_blame_nobody() -> None:
    job = gang()
    job.nodes["n1"] = 200
    said = Progressed("j", 1, len(ON), 1, "train", 100_000)  # One rank too many, or too few.
    job.bed.detector.observe(said, job.bed.now_ms)
    job.bed.run(FOUND_MS)
    assert job.bed.said == []


def test_no_more_are_out_at_a_time_than_lemons_may_be() -> None:
    job = gang()
    job.nodes["n2"] = 125
    job.bed.run(FOUND_MS)
    job.nodes = {"n3": 125}
    job.bed.run(FOUND_MS)
    assert blamed(job.bed) == ["n2"]
    assert {said.node for said in job.bed.of(NodeSlow)} == {"n3"}
    job.bed.nodes["n2"].in_service = True
    job.bed.tell("n2")
    job.bed.run(Rules().straggler_tell_ms)
    assert blamed(job.bed) == ["n2", "n3"]


def test_it_can_be_turned_off() -> None:
    job = gang(rules=msgspec.structs.replace(ACTS, straggler_percent=0))
    job.nodes["n1"] = 300
    job.bed.run(FOUND_MS)
    assert job.bed.said == []


@given(st.lists(st.integers(1_000, 1_099), min_size=4, max_size=12), st.integers(1, 5))
def test_whatever_the_noise_within_the_margin_nobody_is_blamed(busy: list[int], shift: int) -> None:
    bed = Bed(12, ACTS)
    on = tuple(f"n{i}" for i in range(len(busy)))
    bed.start("j", on=on)
    for turn in range(8):
        for member in range(len(busy)):
            said = busy[(member + turn * shift) % len(busy)]
            bed.detector.observe(Progressed("j", 1, member, turn, "train", said), bed.now_ms)
        bed.run(ROUND_MS)
    assert bed.said == []
