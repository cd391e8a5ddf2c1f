"""What every Leadership keeps. A subclass gives `stand`: one more candidate of the same cell at each call."""

import threading
from collections.abc import Callable
from typing import TypeAlias

import pytest

from services.runtime.ports import Leadership

Stand: TypeAlias = Callable[[], Leadership]
DEADLINE_S = 30.0


class LeadershipContract:
    @pytest.fixture
    def stand(self) -> Stand:
        raise NotImplementedError

    def test_the_first_wins_and_holds(self, stand: Stand) -> None:
        leader = stand()
        assert not leader.holds()
        term = leader.campaign(DEADLINE_S)
        assert term is not None
        assert term > 0
        assert leader.holds()

    def test_another_does_not_win_while_one_holds(self, stand: Stand) -> None:
        leader, other = stand(), stand()
        assert leader.campaign(DEADLINE_S) is not None
        assert other.campaign(0.2) is None
        assert not other.holds()
        assert leader.holds()

    def test_resigning_lets_the_next_win_a_higher_term_and_is_for_ever(self, stand: Stand) -> None:
        leader, other = stand(), stand()
        first = leader.campaign(DEADLINE_S)
        leader.resign()
        assert not leader.holds()
        second = other.campaign(DEADLINE_S)
        assert first is not None
        assert second is not None
        assert second > first
        assert not leader.holds()
        assert other.holds()

    def test_one_that_waits_wins_when_the_leader_closes(self, stand: Stand) -> None:
        leader, other = stand(), stand()
        assert leader.campaign(DEADLINE_S) is not None
        won: list[int | None] = []
        thread = threading.Thread(target=lambda: won.append(other.campaign(DEADLINE_S)))
        thread.start()
        leader.close()
        thread.join(DEADLINE_S)
        assert won[0] is not None
        assert other.holds()

    def test_terms_grow_over_many_reigns(self, stand: Stand) -> None:
        terms = []
        for _ in range(5):
            leader = stand()
            terms.append(leader.campaign(DEADLINE_S))
            leader.close()
        numbers = [term for term in terms if term is not None]
        assert len(numbers) == 5
        assert numbers == sorted(set(numbers))

    def test_closing_twice_is_no_error(self, stand: Stand) -> None:
        leader = stand()
        leader.campaign(DEADLINE_S)
        leader.close()
        leader.close()
        assert not leader.holds()
