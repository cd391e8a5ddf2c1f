"""Simulated processes: stopped and killed as real ones are."""

from __future__ import annotations

from simulation.kernel import US_PER_MS, Kernel
from simulation.process import Process


class Ticking(Process):
    """Has a turn every 10 ms, and notes when."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel, "ticking")
        self.turns_ms: list[int] = []

    def begin(self) -> None:
        pass

    def turn(self) -> None:
        self.turns_ms.append(self.kernel.now_ms)
        self.wake(10)


def _run(kernel: Kernel, until_ms: int) -> None:
    kernel.run_until(until_ms * US_PER_MS)


def test_of_two_pauses_at_once_the_longer_counts() -> None:
    kernel = Kernel(1)
    process = Ticking(kernel)
    process.start()
    _run(kernel, 5)
    process.pause(100)
    process.pause(400)
    process.pause(50)
    _run(kernel, 600)
    assert [at for at in process.turns_ms if 5 < at < 405] == []
    assert next(at for at in process.turns_ms if at >= 405) == 405


def test_a_process_that_is_killed_while_it_is_stopped_works_when_it_is_started_again() -> None:
    kernel = Kernel(1)
    process = Ticking(kernel)
    process.start()
    _run(kernel, 5)
    process.pause(10_000)
    process.crash(restart_after_ms=95)
    _run(kernel, 150)
    assert [at for at in process.turns_ms if at > 5] == [100, 110, 120, 130, 140, 150]
    process.pause(20_000)
    _run(kernel, 10_100)  # When the first pause would have ended.
    assert process.paused


def test_what_is_down_cannot_be_stopped() -> None:
    kernel = Kernel(1)
    process = Ticking(kernel)
    process.pause(10_000)
    process.start()
    _run(kernel, 20)
    assert process.turns_ms == [0, 10, 20]
