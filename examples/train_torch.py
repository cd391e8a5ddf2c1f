"""Data-parallel training in PyTorch: DistributedDataParallel over gloo, checkpoint through Tidemill, resume bit-equal.

    tidemill submit --nodes 2 --cpu 1 --overlap-safe -- python examples/train_torch.py --steps 600

The task is that of train_numpy.py: an MLP learns two interleaved spirals. All that the process group needs, RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT, is in the environment of a run, as under torchrun. With two ranks a sum has one
order, so a run that was killed and resumed ends with the same weights, to the bit, as one that never was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tidemill.training import Checkpoint, Session, session

POINTS, HIDDEN, BATCH = 4096, 32, 256
RATE, MOMENTUM = 0.2, 0.9
PEER_TIMEOUT = timedelta(seconds=120)
FILE = "model.pt"


class Training:
    """The model, its optimizer, and both as one file."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        layers = (torch.nn.Linear(2, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
        self.model = torch.nn.Sequential(*layers).double()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)

    def write(self, directory: Path) -> None:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, directory / FILE)

    def read(self, checkpoint: Checkpoint) -> None:
        stored = torch.load(checkpoint.shared_directory / FILE, weights_only=True)
        self.model.load_state_dict(stored["model"])
        self.optimizer.load_state_dict(stored["optimizer"])

    def digest(self) -> str:
        """SHA-256 of the weights and of the momentum beside them."""
        weights = list(self.model.parameters())
        momentum = [self.optimizer.state[weight]["momentum_buffer"] for weight in weights]
        digest = hashlib.sha256()
        for tensor in (*weights, *momentum):
            digest.update(tensor.detach().numpy().tobytes())
        return digest.hexdigest()


def spirals() -> tuple[Any, Any]:
    """Two spirals with noise: inputs (POINTS, 2), labels (POINTS, 1) of 0 and 1."""
    random = torch.Generator().manual_seed(1)
    options = {"generator": random, "dtype": torch.float64}
    turn = torch.sqrt(0.05 + 0.95 * torch.rand(POINTS, **options)) * 2.0 * math.pi
    sign = torch.where(torch.arange(POINTS) % 2 == 0, 1.0, -1.0)
    points = torch.stack([sign * turn * torch.cos(turn), sign * turn * torch.sin(turn)], dim=1)
    noise = 0.03 * torch.randn(POINTS, 2, **options)
    return points / 3.0 + noise, (sign[:, None] > 0).double()


def batch(step: int, rank: int, world_size: int) -> Any:
    """This rank's share of the step's batch: a function of the step, so a resumed run sees the same data."""
    random = torch.Generator().manual_seed(1000 + step)
    return torch.randint(0, POINTS, (BATCH,), generator=random)[rank::world_size]


def train(
    s: Session, training: Training, checkpoint: Checkpoint | None, options: argparse.Namespace
) -> bool:
    """Train to the last step; False when the cell asked to stop before."""
    inputs, labels = spirals()
    me = s.identity
    began = checkpoint.step if checkpoint else 0
    model = DistributedDataParallel(training.model)
    loss_of = torch.nn.BCEWithLogitsLoss()
    for step in range(began + 1, options.steps + 1):
        rows = batch(step, me.rank, me.world_size)
        training.optimizer.zero_grad()
        loss = loss_of(model(inputs[rows]), labels[rows])
        loss.backward()  # gradients are averaged over all ranks in here
        training.optimizer.step()
        time.sleep(options.step_delay)
        s.step(step, loss=loss.item())
        if step % options.save_every == 0 or s.should_save_now(step):
            # All ranks hold the same weights: one writes, all take part.
            with s.save(step, shared=True, data_state=True) as directory:
                if me.rank == 0:
                    training.write(directory)
        if step % 50 == 0 and me.rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if s.should_stop(step):
            print(f"stopped at step {step}, as asked", flush=True)
            return False
    return True


def main() -> int:
    options = _options()
    # One thread sums in one order, whatever the number of cores.
    torch.set_num_threads(1)
    training = Training()
    with session(options.directory) as s:
        with s.load() as checkpoint:
            if checkpoint:
                training.read(checkpoint)
        began = checkpoint.step if checkpoint else 0
        me = s.identity
        print(f"rank {me.rank} of {me.world_size} starts after step {began}", flush=True)
        _alone_outside_a_launcher()
        dist.init_process_group("gloo", timeout=PEER_TIMEOUT)
        try:
            complete = train(s, training, checkpoint, options)
        finally:
            dist.destroy_process_group()
        if complete:
            s.finished(options.steps)
        if complete and me.rank == 0:
            result = {
                "steps": options.steps,
                "weights_sha256": training.digest(),
                "began_at": began,
            }
            print(json.dumps(result), flush=True)
            if options.result:
                Path(options.result).write_text(json.dumps(result) + "\n")
    return 0


def _alone_outside_a_launcher() -> None:
    """Started by hand it is a gang of one."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=600, help="steps to train in all")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--step-delay", type=float, default=0.0, help="seconds added to each step")
    parser.add_argument("--directory", default=None, help="checkpoints go here outside Tidemill")
    parser.add_argument(
        "--result", default="", help="rank 0 writes the digest of the final weights here, as JSON"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
