"""The program that live chaos runs: steps that sleep, saves through the session, resumes. It must never import a server.

python -m chaos.trainer --steps N --step-ms M --save-every K
"""

from __future__ import annotations

import argparse
import sys
import time

from tidemill.training import session


def main() -> int:
    """Train; what counts is that the step that was saved is the one that is loaded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-ms", type=int, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    options = parser.parse_args()
    with session() as s:
        step = 0
        with s.load() as checkpoint:
            if checkpoint is not None:
                saved = checkpoint.rank_directory(s.identity.rank) / "step"
                step = int(saved.read_text(encoding="ascii"))
        while step < options.steps:
            time.sleep(options.step_ms / 1000)
            step += 1
            s.step(step)
            if step % options.save_every == 0 or s.should_save_now(step):
                with s.save(step) as directory:
                    (directory / "step").write_text(str(step), encoding="ascii")
            if s.should_stop(step):
                return 0
        s.finished(step)
    return 0


if __name__ == "__main__":
    sys.exit(main())
