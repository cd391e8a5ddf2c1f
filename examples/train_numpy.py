"""Data-parallel training in numpy: ranks exchange gradients over TCP, checkpoint through Tidemill, resume bit-equal.

    tidemill submit --nodes 2 --cpu 1 --overlap-safe -- python examples/train_numpy.py --steps 600

The task is real and small: an MLP learns two interleaved spirals that every rank generates from one seed. All sums run
in float64 and in rank order, so a run that was killed and resumed ends with the same weights, to the bit, as one that
never was. It must never know how Tidemill works: it calls the session, and starts anywhere it is told to.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import TypeAlias

# One thread sums in one order, whatever the number of cores; numpy reads this when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # after the line above
from numpy.typing import NDArray

from tidemill.training import Checkpoint, Session, session

Array: TypeAlias = NDArray[np.float64]
POINTS, HIDDEN, BATCH = 4096, 32, 256
RATE, MOMENTUM = 0.2, 0.9
CONNECT_S, PEER_S = 60.0, 120.0


class Ring:
    """All ranks' vectors, summed on rank 0 in rank order and sent back: one order, one result."""

    def __init__(self, rank: int, world_size: int, address: str, port: int) -> None:
        self._rank, self._peers = rank, dict[int, socket.socket]()
        if world_size == 1:
            return
        if rank == 0:
            self._listen(world_size, port)
        else:
            self._peers[0] = _connect(address, port)
            self._peers[0].sendall(struct.pack("!I", rank))

    def _listen(self, world_size: int, port: int) -> None:
        with socket.create_server(("", port), backlog=world_size) as server:
            server.settimeout(CONNECT_S)
            while len(self._peers) < world_size - 1:
                peer, _ = server.accept()
                _tune(peer)
                (rank,) = struct.unpack("!I", _receive(peer, 4))
                self._peers[rank] = peer

    def mean(self, vector: Array) -> Array:
        """The mean over all ranks. Raises OSError when a peer is gone: then this attempt is over."""
        if not self._peers:
            return vector
        if self._rank:
            self._peers[0].sendall(vector.tobytes())
            return np.frombuffer(_receive(self._peers[0], vector.nbytes), dtype=np.float64).copy()
        total = vector.copy()
        for rank in sorted(self._peers):
            total += np.frombuffer(_receive(self._peers[rank], vector.nbytes), dtype=np.float64)
        total /= len(self._peers) + 1
        for rank in sorted(self._peers):
            self._peers[rank].sendall(total.tobytes())
        return total

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()


def _connect(address: str, port: int) -> socket.socket:
    """Rank 0 may start later than we do."""
    ends = time.monotonic() + CONNECT_S
    while True:
        try:
            peer = socket.create_connection((address, port), timeout=5.0)
        except OSError:
            if time.monotonic() >= ends:
                raise
            time.sleep(0.1)
        else:
            return _tune(peer)


def _tune(peer: socket.socket) -> socket.socket:
    peer.settimeout(PEER_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def _receive(peer: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = peer.recv(size - len(data))
        if not chunk:
            raise ConnectionError("a peer closed the connection")
        data += chunk
    return bytes(data)


class Model:
    """Two layers of weights in one vector, with the momentum beside it."""

    def __init__(self) -> None:
        random = np.random.default_rng(7)
        first = random.normal(0.0, 1.0, (2, HIDDEN))
        second = random.normal(0.0, 1.0 / HIDDEN**0.5, (HIDDEN, 1))
        self.weights = np.concatenate(
            [first.ravel(), np.zeros(HIDDEN), second.ravel(), np.zeros(1)]
        )
        self.momentum = np.zeros_like(self.weights)

    def gradient(self, inputs: Array, labels: Array) -> tuple[Array, float]:
        """Gradient of the logistic loss, and the loss."""
        edge = 2 * HIDDEN
        first, bias = self.weights[:edge].reshape(2, HIDDEN), self.weights[edge : edge + HIDDEN]
        second, offset = self.weights[edge + HIDDEN : -1], self.weights[-1]
        hidden = np.tanh(inputs @ first + bias)
        logits = hidden @ second + offset
        loss = float(np.mean(np.logaddexp(0.0, -labels * logits)))
        slope = -labels / (1.0 + np.exp(labels * logits)) / len(labels)
        back = np.outer(slope, second) * (1.0 - hidden**2)
        parts = [(inputs.T @ back).ravel(), back.sum(axis=0), hidden.T @ slope, [slope.sum()]]
        return np.concatenate(parts), loss

    def descend(self, gradient: Array) -> None:
        self.momentum = MOMENTUM * self.momentum - RATE * gradient
        self.weights = self.weights + self.momentum

    def digest(self) -> str:
        return hashlib.sha256(self.weights.tobytes() + self.momentum.tobytes()).hexdigest()

    def write(self, directory: Path) -> None:
        np.savez(directory / "model.npz", weights=self.weights, momentum=self.momentum)

    def read(self, directory: Path) -> None:
        with np.load(directory / "model.npz") as stored:
            self.weights, self.momentum = stored["weights"], stored["momentum"]


def spirals() -> tuple[Array, Array]:
    """Two spirals with noise: inputs (POINTS, 2), labels of -1 and +1."""
    random = np.random.default_rng(1)
    turn = np.sqrt(random.uniform(0.05, 1.0, POINTS)) * 2.0 * np.pi
    labels = np.where(np.arange(POINTS) % 2 == 0, 1.0, -1.0)
    points = np.stack([labels * turn * np.cos(turn), labels * turn * np.sin(turn)], axis=1)
    return points / 3.0 + random.normal(0.0, 0.03, points.shape), labels


def batch(step: int, rank: int, world_size: int) -> NDArray[np.int64]:
    """This rank's share of the step's batch: a function of the step, so a resumed run sees the same data."""
    chosen = np.random.default_rng([step, 2]).integers(0, POINTS, BATCH)
    return chosen[rank::world_size]


def train(
    s: Session, model: Model, checkpoint: Checkpoint | None, ring: Ring, options: argparse.Namespace
) -> bool:
    """Train to the last step; False when the cell asked to stop before."""
    inputs, labels = spirals()
    me = s.identity
    began = checkpoint.step if checkpoint else 0
    for step in range(began + 1, options.steps + 1):
        rows = batch(step, me.rank, me.world_size)
        gradient, loss = model.gradient(inputs[rows], labels[rows])
        time.sleep(options.step_delay)
        with s.waiting():  # So that the cell can tell which rank is slow.
            mean = ring.mean(gradient)
        model.descend(mean)
        s.step(step, loss=loss)
        if step % options.save_every == 0 or s.should_save_now(step):
            with s.save(step, data_state=True) as directory:
                model.write(directory)
        if step % 50 == 0 and me.rank == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
        if s.should_stop(step):
            print(f"stopped at step {step}, as asked", flush=True)
            return False
    return True


def main() -> int:
    options = _options()
    model = Model()
    with session(options.directory) as s:
        with s.load() as checkpoint:
            if checkpoint:
                model.read(checkpoint.rank_directory(s.identity.rank))
        began = checkpoint.step if checkpoint else 0
        print(
            f"rank {s.identity.rank} of {s.identity.world_size} starts after step {began}",
            flush=True,
        )
        address, port = (
            os.environ.get("MASTER_ADDR", "127.0.0.1"),
            int(os.environ.get("MASTER_PORT", "29500")),
        )
        ring = Ring(s.identity.rank, s.identity.world_size, address, port)
        try:
            complete = train(s, model, checkpoint, ring, options)
        finally:
            ring.close()
        if complete:
            s.finished(options.steps)
        if complete and s.identity.rank == 0:
            result = {"steps": options.steps, "weights_sha256": model.digest(), "began_at": began}
            print(json.dumps(result), flush=True)
            if options.result:
                Path(options.result).write_text(json.dumps(result) + "\n")
    return 0


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
