"""The pure core of a session under virtual time: order, bounds, backoff, and answers to asks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.training.core import (
    NEVER,
    Ask,
    AskAdvice,
    Call,
    Limits,
    SendAnswer,
    SendProgress,
    SendReport,
    StepTime,
    TrainerCore,
    lead_steps,
)
from tidemill.v1 import reports_pb2 as reports_pb


class Loop:
    """A training loop in virtual time: one step every `step_ms`."""

    def __init__(self, core: TrainerCore, *, step_ms: int = 100) -> None:
        self.core, self.step_ms, self.now_ms, self.step, self._due_ms = (
            core,
            step_ms,
            1_000,
            0,
            1_000,
        )

    def run(self, ms: int) -> list[Call]:
        """Go on for so long, looking every 100 ms, with a gateway that takes everything; what was sent."""
        calls: list[Call] = []
        for _ in range(ms // 100):
            self.tick()
            while (call := self.core.due(self.now_ms)) is not None:
                self.core.sent(call, self.now_ms)
                calls.append(call)
        return calls

    def tick(self) -> None:
        self.now_ms += 100
        while self._due_ms + self.step_ms <= self.now_ms:
            self._due_ms += self.step_ms
            self.step += 1
        self.look()

    def look(self, phase: str = "train") -> None:
        self.core.observe_steps(
            self.step, self.step, self.now_ms, at_ms=self.now_ms, phase=phase, metrics={"loss": 0.5}
        )


def core(rank: int = 0, **limits: int) -> TrainerCore:
    return TrainerCore("job", 2, rank, Limits(**limits))


def saved(step: int) -> reports_pb.Report:
    return reports_pb.Report(saved=reports_pb.Saved(job="job", attempt=2, step=step))


def of(kind: type, calls: list[Call]) -> list[Call]:
    return [call for call in calls if isinstance(call, kind)]


# ---------------------------------------------------------------- progress


def test_progress_is_reported_at_most_once_a_second_with_the_mean_step_time() -> None:
    loop = Loop(core(), step_ms=50)
    records = [record for call in of(SendProgress, loop.run(10_000)) for record in call.records]  # type: ignore[union-attr]
    assert 9 <= len(records) <= 11
    assert [record.step for record in records] == sorted(record.step for record in records)
    assert {record.step_us for record in records[2:]} == {50_000}
    assert dict(records[-1].metrics) == {"loss": 0.5}


def test_other_ranks_report_less_often() -> None:
    assert len(of(SendProgress, Loop(core(rank=3)).run(10_000))) == 2


def test_a_loop_that_stands_still_is_not_reported_alive() -> None:
    loop = Loop(core(), step_ms=100)
    loop.run(2_000)
    loop.step_ms = 10**9
    loop.run(1_000)
    assert of(SendProgress, loop.run(60_000)) == []


def test_what_a_rank_works_is_the_mean_since_its_last_report_and_0_while_it_is_not_measured() -> (
    None
):
    trainer, told = core(), list[int]()
    for steps, busy_us in ((10, 0), (20, 0), (30, 3_000), (40, 5_000), (44, 5_400)):
        now_ms = steps * 1_000
        trainer.observe_steps(
            steps, steps, now_ms, at_ms=0, phase="train", metrics={}, busy_us=busy_us
        )
        call = trainer.due(now_ms)
        assert isinstance(call, SendProgress)
        trainer.sent(call, now_ms)
        told += [record.busy_us for record in call.records]
    assert told == [0, 0, 0, 200, 100]


def test_a_change_of_phase_is_progress() -> None:
    trainer = core()
    loop = Loop(trainer, step_ms=10**9)
    loop.run(1_000)
    loop.now_ms += 1_000
    loop.look("save")
    call = trainer.due(loop.now_ms)
    assert isinstance(call, SendProgress)
    assert call.records[-1].phase == "save"


def test_while_the_gateway_is_away_the_oldest_progress_goes_first() -> None:
    trainer = core(progress_kept=5)
    loop = Loop(trainer)
    for _ in range(300):
        loop.tick()
    call = trainer.due(loop.now_ms)
    assert isinstance(call, SendProgress)
    steps = [record.step for record in call.records]
    assert (len(steps), steps[-1] > 290, trainer.dropped_progress) == (5, True, 25)


def test_progress_that_came_while_a_call_was_under_way_is_kept() -> None:
    trainer = core(progress_kept=2)
    loop = Loop(trainer)
    loop.tick()
    call = trainer.due(loop.now_ms)
    for _ in range(30):
        loop.tick()
    assert call is not None
    trainer.sent(call, loop.now_ms)
    later = trainer.due(loop.now_ms)
    assert isinstance(later, SendProgress)
    assert len(later.records) == 2


# ---------------------------------------------------------------- reports


def test_reports_are_sent_in_order_one_at_a_time_and_never_dropped() -> None:
    trainer = core(progress_kept=2)
    loop = Loop(trainer)
    for key in range(1, 501):
        trainer.add_report(key, saved(key))
    sent = of(SendReport, loop.run(1_000))
    assert [call.key for call in sent] == list(range(1, 501))  # type: ignore[union-attr]
    assert trainer.owes_reports == 0


def test_what_an_earlier_process_left_goes_first() -> None:
    trainer = core()
    trainer.add_report(7, saved(70))
    trainer.add_spooled([(1, saved(10)), (2, saved(20))])
    assert [call.key for call in of(SendReport, Loop(trainer).run(100))] == [1, 2, 7]  # type: ignore[union-attr]


def test_a_gateway_that_is_away_is_asked_less_and_less_often_and_nothing_is_lost() -> None:
    trainer = core(first_backoff_ms=250, backoff_cap_ms=15_000)
    trainer.add_report(1, saved(10))
    now, tries = 0, []
    while now < 600_000:
        call = trainer.due(now)
        if call is None:
            now = trainer.next_due_ms(now)
            continue
        tries.append(now)
        trainer.not_sent(call, now, refused=False)
    gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert gaps[:7] == [250, 500, 1_000, 2_000, 4_000, 8_000, 15_000]
    assert set(gaps[7:]) == {15_000}
    assert trainer.owes_reports == 1


def test_after_an_outage_the_first_success_ends_the_backoff() -> None:
    trainer = core()
    trainer.add_report(1, saved(10))
    trainer.add_report(2, saved(20))
    call = trainer.due(0)
    assert call is not None
    trainer.not_sent(call, 0, refused=False)
    assert trainer.due(100) is None
    again = trainer.due(250)
    assert again == call
    trainer.sent(call, 250)
    following = trainer.due(250)
    assert isinstance(following, SendReport)
    assert following.key == 2


def test_a_report_refused_for_good_is_not_sent_again_and_is_counted() -> None:
    trainer = core()
    trainer.add_report(1, saved(10))
    trainer.add_report(2, saved(20))
    call = trainer.due(0)
    assert call is not None
    trainer.not_sent(call, 0, refused=True)
    following = trainer.due(0)
    assert isinstance(following, SendReport)
    assert (following.key, trainer.refused) == (2, 1)


@given(st.lists(st.sampled_from(["report", "sent", "away", "refused", "tick"]), max_size=200))
def test_whatever_happens_every_report_is_sent_once_in_order_or_refused(events: list[str]) -> None:
    trainer = core()
    loop = Loop(trainer)
    added, done = 0, []
    for event in [*events, *(["sent"] * 400)]:
        if event == "report":
            added += 1
            trainer.add_report(added, saved(added))
        elif event == "tick":
            loop.tick()
        else:
            loop.now_ms = trainer.next_due_ms(loop.now_ms)
            call = trainer.due(loop.now_ms)
            if call is None:
                continue
            if event == "away":
                trainer.not_sent(call, loop.now_ms, refused=False)
            else:
                if isinstance(call, SendReport):
                    done.append(call.key)
                if event == "sent":
                    trainer.sent(call, loop.now_ms)
                else:
                    trainer.not_sent(call, loop.now_ms, refused=True)
    assert done == list(range(1, added + 1))


# ---------------------------------------------------------------- advice


def test_rank_0_asks_for_advice_now_and_then_and_soon_after_a_save() -> None:
    trainer = core(advice_every_ms=15_000)
    loop = Loop(trainer)
    assert len(of(AskAdvice, loop.run(31_000))) == 3
    trainer.add_report(1, saved(5))
    assert len(of(AskAdvice, loop.run(3_000))) == 1


def test_other_ranks_ask_for_no_advice() -> None:
    assert of(AskAdvice, Loop(core(rank=1)).run(60_000)) == []


def test_advice_is_kept() -> None:
    trainer = core()
    trainer.advised(600_000, 40, [30, 10, 20])
    assert (trainer.advised_interval_ms, trainer.durable_step, trainer.released) == (
        600_000,
        40,
        (10, 20, 30),
    )


# ---------------------------------------------------------------- asks


@pytest.mark.parametrize(
    ("step_us", "lead"), [(0, 2), (1_000, 2_002), (100_000, 22), (2_000_000, 3), (60_000_000, 2)]
)
def test_the_lead_covers_two_seconds_of_steps_and_never_names_the_step_under_way(
    step_us: int, lead: int
) -> None:
    assert lead_steps(step_us, 2_000) == lead


def test_rank_0_answers_an_ask_once_with_a_step_soon_to_come() -> None:
    trainer = core()
    loop = Loop(trainer, step_ms=100)
    loop.run(3_000)
    trainer.observe_ask(Ask(ask=1))
    answers = of(SendAnswer, loop.run(1_000))
    assert len(answers) == 1
    assert isinstance(answers[0], SendAnswer)
    assert loop.step < answers[0].at_step <= loop.step + 22
    said = answers[0].report.save_answered
    assert (said.job, said.attempt, said.ask, said.at_step) == ("job", 2, 1, answers[0].at_step)


def test_only_rank_0_answers() -> None:
    trainer = core(rank=1)
    trainer.observe_ask(Ask(ask=1))
    assert of(SendAnswer, Loop(trainer).run(5_000)) == []


def test_an_answer_that_could_not_be_sent_is_made_anew_when_it_can() -> None:
    trainer = core()
    loop = Loop(trainer)
    loop.run(1_000)
    trainer.observe_ask(Ask(ask=1))
    late = trainer.due(loop.now_ms)
    assert isinstance(late, SendAnswer)
    trainer.not_sent(late, loop.now_ms, refused=False)
    for _ in range(600):
        loop.tick()
    fresh = trainer.due(loop.now_ms)
    assert isinstance(fresh, SendAnswer)
    assert late.at_step < loop.step < fresh.at_step


def test_an_answer_goes_before_reports_that_wait() -> None:
    trainer = core()
    trainer.add_report(1, saved(1))
    trainer.observe_ask(Ask(ask=1))
    assert isinstance(trainer.due(0), SendAnswer)


def test_a_missed_step_is_answered_again_with_twice_the_lead() -> None:
    trainer = core()
    loop = Loop(trainer, step_ms=100)
    loop.run(2_000)
    trainer.observe_ask(Ask(ask=1))
    answers = of(SendAnswer, loop.run(10_000))
    steps = [call.at_step for call in answers if isinstance(call, SendAnswer)]
    assert len(steps) == 3
    assert steps[2] - steps[1] > 1.5 * (steps[1] - steps[0])


def test_a_step_at_which_the_save_was_tried_is_not_missed() -> None:
    trainer = core()
    loop = Loop(trainer, step_ms=100)
    loop.run(2_000)
    trainer.observe_ask(Ask(ask=1))
    (answer,) = of(SendAnswer, loop.run(1_000))
    assert isinstance(answer, SendAnswer)
    trainer.observe_ask(Ask(1, answer.at_step, stop_after_save=True))
    assert (trainer.save_at, trainer.stop_at) == (answer.at_step, answer.at_step)
    trainer.save_attempted(answer.at_step)
    assert of(SendAnswer, loop.run(10_000)) == []


def test_a_new_ask_is_answered_anew_and_an_old_one_ignored() -> None:
    trainer = core()
    loop = Loop(trainer)
    loop.run(1_000)
    trainer.observe_ask(Ask(1))
    loop.run(500)
    trainer.observe_ask(Ask(2))
    (answer,) = of(SendAnswer, loop.run(500))
    assert isinstance(answer, SendAnswer)
    assert answer.ask == 2
    trainer.observe_ask(Ask(1, 99, stop_after_save=True))
    assert (trainer.save_at, trainer.stop_at) == (-1, NEVER)


def test_without_an_agreed_step_nobody_saves_or_stops() -> None:
    trainer = core()
    trainer.observe_ask(Ask(1, 0, stop_after_save=True))
    assert (trainer.save_at, trainer.stop_at) == (-1, NEVER)


def test_a_restarted_process_does_not_answer_what_is_agreed_already() -> None:
    trainer = core()
    trainer.observe_ask(Ask(1, 10_000, stop_after_save=True))
    assert of(SendAnswer, Loop(trainer).run(2_000)) == []


def test_a_long_step_counts_with_its_age() -> None:
    time = StepTime()
    time.observe(0, 1_000)
    time.observe(0, 61_000)
    assert time.mean_us == 60_000_000
    time.observe(1, 61_100)
    assert time.mean_us == (60_000_000 * 3 + 60_100_000) // 4
