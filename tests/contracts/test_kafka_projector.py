"""The projector as a process on a real broker: killed again and again, every fact is in `<cell>.facts` once."""

from collections.abc import Iterator

import pytest

from services.runtime.exits import ExitCode
from tests.contracts.test_kafka_facts import KafkaFactsOf
from tests.fixtures.kafka_cell import KafkaCell, kafka_cell
from tests.services.projector.process import await_that, grow_and_kill, wanted
from tests.statemachines.golden import FOLDER, read
from tests.statemachines.world import CELL

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]
HISTORY = read(FOLDER / "history-7.bin")


@pytest.fixture
def cell(kafka_bootstrap: str) -> Iterator[KafkaCell]:
    with kafka_cell(kafka_bootstrap, cell=CELL) as made:
        yield made


def test_a_projector_that_is_killed_again_and_again_stores_every_fact_once(
    cell: KafkaCell,
) -> None:
    flags = ["--cell", CELL, "--log", "kafka", "--kafka", cell.settings.bootstrap]
    process = grow_and_kill(cell.log(), HISTORY, flags, kills=4, seed=2)
    try:
        await_that(process.is_ready, "it has caught up")
        assert KafkaFactsOf(cell).facts() == wanted(CELL, HISTORY, range(len(HISTORY)))
        assert process.stop() == ExitCode.STOPPED
    finally:
        process.kill()
