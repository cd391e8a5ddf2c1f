"""How often a gang should save: the exact optimum for exponential failures, from measured saves and a rate of failures.

With blocking save cost d and mean time to failure M of the whole gang, the share of time that is productive is
tau / (M e^(R/M) (e^((tau + d)/M) - 1)); restart time R does not move its maximum. Setting the derivative to zero gives
tau = M (1 + W(-e^(-(1 + d/M)))), W being Lambert's function. For small d/M it is Young's sqrt(2 d M). Pure; what comes
out is advice to a trainer and never state, so floats are allowed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from statemachines.checkpoint import Checkpoint

# Interrupting faults of hardware and system per 1,000 nodes and day: 419 in 54 days on 2,048 nodes (Llama 3, table 5).
FAILURES_PER_1000_NODE_DAYS: Final = 3.8
_DAY_S: Final = 86_400
_NEWTON_STEPS: Final = 60
# Saves looked at, newest first; their median is the cost.
_SAVES: Final = 5


def interval_ms(
    checkpoints: Sequence[Checkpoint], nodes: int, *, rate: float = FAILURES_PER_1000_NODE_DAYS
) -> int:
    """Advised time between the starts of two saves, in milliseconds; 0 while no save has been measured."""
    newest = [each.save_ms for each in reversed(checkpoints) if each.save_ms > 0][:_SAVES]
    costs = sorted(newest)
    if not costs or nodes < 1 or rate <= 0:
        return 0
    cost_s = costs[len(costs) // 2] / 1000
    failure_s = _DAY_S * 1000 / (rate * nodes)
    return round(optimum_s(cost_s, failure_s) * 1000)


def optimum_s(cost_s: float, failure_s: float) -> float:
    """The interval that loses least, for a save that blocks `cost_s` and a failure every `failure_s` on average.

    Solves e^(x + c)(1 - x) = 1 for x = tau / failure_s in (0, 1), c = cost_s / failure_s, by Newton's method on
    f(x) = x + c + log(1 - x), which is concave: from the right it converges without overshooting.
    """
    c = cost_s / failure_s
    x = 1 - math.exp(-(1 + c))  # f is negative here, and stays so from step to step.
    for _ in range(_NEWTON_STEPS):
        step = (x + c + math.log1p(-x)) * (1 - x) / -x
        x -= step
        if abs(step) < 1e-12:
            break
    return x * failure_s
