"""Closed forms that the simulation is held to. Exponential failures, constant costs; times in seconds. Only arithmetic."""

from __future__ import annotations

import math

DAY_S = 86_400


def mttf_s(nodes: int, per_1000_node_days: float) -> float:
    """Mean time to failure of a job on `nodes` nodes in series."""
    return DAY_S * 1000 / (nodes * per_1000_node_days)


def efficiency(interval_s: float, save_s: float, restart_s: float, failure_s: float) -> float:
    """Share of time that is productive: tau / (M e^(R/M) (e^((tau + d)/M) - 1)), detection inside R."""
    lost = math.exp(restart_s / failure_s) * math.expm1((interval_s + save_s) / failure_s)
    return interval_s / (failure_s * lost)


def poisson_quantile(mean: float, share: float) -> int:
    """The smallest count that a Poisson variable does not pass in `share` of all cases."""
    count, log_term = 0, -mean
    reached = math.exp(log_term)
    while reached < share:
        count += 1
        log_term += math.log(mean / count)
        reached += math.exp(log_term)
    return count


def lognormal_sigma(median: float, quantile: float, *, z: float) -> float:
    """Sigma of the lognormal with this median and this value at `z` standard deviations."""
    return math.log(quantile / median) / z
