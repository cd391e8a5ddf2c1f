"""What holds for every test: Hypothesis profiles, no silent skip, a count of skips at the end, and Ctrl-C.

It must never hold fixtures of one subject; those live beside the tests that use them.
"""

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

IN_CI = os.environ.get("CI") == "true"
REAL_SERVICES = ("etcd", "kafka")

# Real Kafka and etcd for whoever asks; starts nothing by itself.
pytest_plugins = ("tests.fixtures.stack",)

# One history for everyone in CI; new examples at a desk. A slow machine is not a failed test.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("desk", deadline=None, print_blob=True)
settings.load_profile("ci" if IN_CI else "desk")


# What a shell starts in the background ignores SIGINT, and hands that on to its children; tests send it to theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test of a real service fails where it would skip: CI must bring the service."""
    report = yield
    real = [name for name in REAL_SERVICES if item.get_closest_marker(name)]
    if IN_CI and report.skipped and real and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = (
            f"needs a real {' and '.join(real)}, and CI=true allows no skip: {report.longrepr}"
        )
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly how much did not run."""
    skipped = len(terminalreporter.stats.get("skipped", ()))
    if skipped:
        terminalreporter.write_line(
            f"SKIPPED {skipped} tests: the reasons are above; CI=true makes them fail "
            "where a real service was missing",
            yellow=True,
            bold=True,
        )
