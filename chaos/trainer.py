"""The program that live chaos runs: ranks sum over the fabric step by step, save, resume. It must never import a server.

python -m chaos.trainer --steps N --step-ms M --save-every K [--rails R] [--failover]

What a step adds is known, so is what all add up to: a step that was left out or done twice ends the program with 3.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Final

from chaos.ring import RailsDeadError, Ring
from tidemill.training import Session, session

WRONG_SUM: Final = 3
# As Megatron has it: the same checkpoint on other nodes.
OTHER_NODES: Final = 16


def main() -> int:
    """Train; the exit code."""
    options = _options()
    with session() as s:
        ring = _ring(s, options)
        try:
            return _train(s, ring, options)
        except RailsDeadError as error:
            print(error, file=sys.stderr, flush=True)
            return OTHER_NODES
        finally:
            ring.close()


def _train(s: Session, ring: Ring, options: argparse.Namespace) -> int:
    step, weight = _resumed(s)
    rank, world_size = s.identity.rank, s.identity.world_size
    while step < options.steps:
        time.sleep(options.step_ms / 1000)
        step += 1
        with s.waiting():
            weight += ring.sum(step, step * (rank + 1))
        s.step(step)
        if step % options.save_every == 0 or s.should_save_now(step):
            with s.save(step) as directory:
                (directory / "state").write_text(f"{step} {weight}", encoding="ascii")
        if s.should_stop(step):
            return 0
    expected = sum(range(step + 1)) * sum(range(world_size + 1))
    if weight != expected:
        print(f"all steps add up to {expected}, not to {weight}", file=sys.stderr, flush=True)
        return WRONG_SUM
    s.finished(step)
    return 0


def _resumed(s: Session) -> tuple[int, int]:
    """Step and weight of the checkpoint that the cell names; of the beginning when there is none."""
    with s.load() as checkpoint:
        if checkpoint is None:
            return 0, 0
        saved = checkpoint.rank_directory(s.identity.rank) / "state"
        step, weight = saved.read_text(encoding="ascii").split()
        return int(step), int(weight)


def _ring(s: Session, options: argparse.Namespace) -> Ring:
    me = s.identity
    return Ring(
        f"{me.job}.{me.attempt}",
        rank=me.rank,
        world_size=me.world_size,
        address=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        port=int(os.environ.get("MASTER_PORT", "29500")),
        count=options.rails,
        failover=options.failover,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-ms", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--rails", type=int, default=1, help="interfaces that each rank talks over")
    parser.add_argument("--failover", action="store_true", help="one of them is enough")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
