"""The leader frozen past its lease, and killed under load: nothing of it counts afterwards, and nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from services.runtime.exits import ExitCode
from services.runtime.trial_kafka import KafkaTrialCell
from tests.live.audit import all_readers_agree
from tests.live_kafka.conftest import LivingJob
from tests.live_kafka.load import Load, assert_decided_once, rounds, scheduler_ends
from tidemill import Client

pytestmark = [pytest.mark.kafka, pytest.mark.etcd]


@pytest.mark.timeout(1_800)
def test_a_leader_frozen_past_its_lease_is_followed_and_ends_when_it_thaws(
    cell: KafkaTrialCell, client: Client, living: LivingJob
) -> None:
    chance = random.Random(4)
    with Load(cell, per_s=50) as load:
        for _ in range(rounds(10, 100)):
            term, zombie = client.cell().term, cell.leader_pid(client)
            time.sleep(chance.random())  # The instant of the freeze is any.
            os.kill(zombie, signal.SIGSTOP)
            cell.until("the next leader", partial(_above, client, term))
            os.kill(zombie, signal.SIGCONT)
            cell.until("the zombie to end", partial(_gone, zombie))
            cell.until("two schedulers", lambda: len(cell.pids_of("scheduler")) == 2)
            assert living.alive()
    living.end(client)
    audit = all_readers_agree(cell, client)
    assert_decided_once(audit, load.acknowledged)
    assert all(before <= after for before, after in pairwise(audit.terms))
    print(f"accepted {len(audit.terms)} entries, {audit.cluster.voided} void")
    assert scheduler_ends(cell) <= {ExitCode.DEPOSED, ExitCode.LEADERSHIP_LOST}


@pytest.mark.timeout(1_800)
def test_a_leader_killed_under_load_loses_nothing_and_is_followed_within_seconds(
    cell: KafkaTrialCell, client: Client, living: LivingJob
) -> None:
    took_s = []
    with Load(cell, per_s=500) as load:
        for _ in range(rounds(5, 50)):
            cell.until("two schedulers", lambda: len(cell.pids_of("scheduler")) == 2)
            time.sleep(1.0)  # The one that was started again has caught up.
            term = client.cell().term
            began = time.monotonic()
            cell.kill_leader(client)
            cell.until("the next leader", partial(_above, client, term))
            took_s.append(time.monotonic() - began)
            assert living.alive()
    living.end(client)
    took_s.sort()
    p50_s, p99_s = took_s[len(took_s) // 2], took_s[len(took_s) * 99 // 100]
    # How fast is for `bench failover` to say, on a machine of its own.
    print(f"{len(load.acknowledged)} acknowledged; failover p50 {p50_s:.2f} s, p99 {p99_s:.2f} s")
    assert_decided_once(all_readers_agree(cell, client), load.acknowledged)


def _above(client: Client, term: int) -> bool:
    return client.cell(deadline_s=5.0).term > term


def _gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()
