"""Progress that others than gateways may write: what is believed, and what is refused without harm."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from msgspec.structs import replace

from services.health.driver import Processor
from services.health.proofs import FRESH_MS, Proofs
from services.health.service import load_proofs
from services.health.settings import HealthSettings
from services.runtime.settings import SettingsError
from services.runtime.tokens import job_token
from tests.services.health.bed import TABLE
from tests.services.health.stage import RULES, Stage
from tests.statemachines.world import CELL, spec
from tidemill.kafka.records import progress_proof, progress_record
from tidemill.v1 import telemetry_pb2

KEY = bytes(range(32))
NOW_MS = 1_800_000_000_000


def said(
    step: int = 5, *, at_ms: int = NOW_MS, attempt: int = 1, token: str = "", phase: str = "train"
) -> telemetry_pb2.Progress:
    _, value = progress_record(
        token or job_token(KEY, "j", attempt),
        job="j",
        attempt=attempt,
        rank=0,
        step=step,
        at_ms=at_ms,
        phase=phase,
    )
    return telemetry_pb2.Progress.FromString(value)


def changed(**fields: object) -> telemetry_pb2.Progress:
    record = said()
    for name, value in fields.items():
        setattr(record, name, value)
    return record


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (said(), ""),
        (said(at_ms=NOW_MS - FRESH_MS), ""),
        (said(at_ms=NOW_MS - FRESH_MS - 1), "expired"),
        (said(at_ms=NOW_MS + FRESH_MS + 1), "expired"),
        (said(token=job_token(KEY, "j", 2)), "forged"),
        (said(token=job_token(bytes(32), "j", 1)), "forged"),
        (changed(step=6), "forged"),
        (changed(attempt=2), "forged"),
        (changed(job="k"), "forged"),
        (changed(rank=1), "forged"),
        (changed(phase="save"), "forged"),
        (changed(at_ms=NOW_MS + 1), "forged"),
        (changed(busy_us=1), "forged"),
        (changed(token=""), "unproven"),
        (changed(token=job_token(KEY, "j", 1)), "forged"),
        (changed(token="\N{SNOWMAN}"), "forged"),
    ],
    ids=[
        "honest", "as_old_as_may_be", "too_old", "too_new", "of_another_attempt", "of_another_cell", "step_changed",
        "attempt_changed", "job_changed", "rank_changed", "phase_changed", "time_changed", "busy_added", "no_proof", "the_token_itself",
        "not_ascii",
    ],
)  # fmt: skip
def test_a_record_is_believed_only_with_a_fresh_proof_of_all_it_says(
    record: telemetry_pb2.Progress, why: str
) -> None:
    refused: list[str] = []
    assert Proofs(KEY, refused.append).admit(record, NOW_MS) == (not why)
    assert refused == ([why] if why else [])


def test_a_record_that_is_sent_again_later_is_refused() -> None:
    refused: list[str] = []
    proofs = Proofs(KEY, refused.append)
    first, other = said(1, phase="save"), said(2, at_ms=NOW_MS + 10_000)
    assert proofs.admit(first, NOW_MS)
    assert proofs.admit(other, NOW_MS + 10_000)
    assert not proofs.admit(first, NOW_MS + 20_000)
    assert proofs.admit(said(1, at_ms=NOW_MS, attempt=2), NOW_MS)
    assert refused == ["replayed"]


def test_a_hung_job_is_not_kept_alive_by_what_was_forged_or_sent_again() -> None:
    stage, refused = Stage(), list[str]()
    stage.world.admit("j", replace(spec(), hang_after_ms=30_000))
    stage.world.start("j", 1, [("n1", [0])])
    stage.log()
    processor = Processor(
        CELL, stage.ports(), RULES, TABLE, stage.notes, Proofs(KEY, refused.append)
    )
    stage.run(processor, 2_000, beating=["n1"])

    def honest(step: int, phase: str = "train") -> telemetry_pb2.Progress:
        return said(step, at_ms=stage.clock.wall_ms(), phase=phase)

    old = [honest(1, "save"), honest(2)]
    for step in range(3, 10):
        stage.publish("progress", honest(step))
        stage.run(processor, 10_000, beating=["n1"])
    assert stage.kinds() == []
    for step in range(10, 13):
        stage.publish("progress", old[step % 2])
        stage.publish("progress", changed(step=step, at_ms=stage.clock.wall_ms()))
        stage.step("j", step)
        stage.run(processor, 10_000, beating=["n1"])
    assert set(stage.kinds()) == {"job_hung"}
    assert sorted(set(refused)) == ["forged", "replayed", "unproven"]
    assert len(refused) == 9


def test_it_is_off_unless_asked_for_and_needs_the_key() -> None:
    class Nobody:
        def refused(self, why: str) -> None:
            raise AssertionError(why)

    assert load_proofs(HealthSettings(), Nobody()) is None  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="outside_progress needs the key"):
        load_proofs(HealthSettings(outside_progress=True, key="/absent"), Nobody())  # type: ignore[arg-type]


def test_the_proof_is_what_the_page_says() -> None:
    """docs/how-to/outside-producers.md, in the words of any language."""
    record = said()
    words = b"progress\0j\x001\x000\x005\x001800000000000\x000\0train"
    wanted = hmac.new(job_token(KEY, "j", 1).encode(), words, hashlib.sha256).hexdigest()
    assert record.token == progress_proof(job_token(KEY, "j", 1), record) == f"tmp.{wanted}"


def test_what_is_measured_is_proven_too_and_old_writers_who_do_not_are_believed() -> None:
    token = job_token(KEY, "j", 1)
    _, value = progress_record(token, job="j", attempt=1, rank=0, step=5, busy_us=700, at_ms=NOW_MS)
    record = telemetry_pb2.Progress.FromString(value)
    assert Proofs(KEY, list[str]().append).admit(record, NOW_MS)
    words = b"progress\0j\x001\x000\x005\x001800000000000\x000\0train\x00700"
    assert record.token == f"tmp.{hmac.new(token.encode(), words, hashlib.sha256).hexdigest()}"
    record.busy_us = 0
    assert not Proofs(KEY, list[str]().append).admit(record, NOW_MS)
