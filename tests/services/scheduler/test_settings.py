"""Settings of the scheduler that make no sense together."""

from __future__ import annotations

import pytest

from services.runtime.settings import SettingsError, load
from services.scheduler.settings import SchedulerSettings


def test_ports_end_where_ports_do() -> None:
    most = load(SchedulerSettings, "scheduler", ["--port-first", "60000", "--port-count", "5536"])
    assert most.policy.port_first + most.policy.port_count == 65_536
    with pytest.raises(SettingsError, match="end at 65536, which is no port; at most 5536 from"):
        load(SchedulerSettings, "scheduler", ["--port-first", "60000", "--port-count", "5537"])
