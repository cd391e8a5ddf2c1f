"""For trainers: `with session() as s`. See session.py; nothing here imports a framework or numpy.

with session() as s:
with s.load() as checkpoint:
state = load(checkpoint.rank_directory(s.identity.rank)) if checkpoint else fresh()
for step in range(state.step + 1, last + 1):
loss = train(state)
s.step(step, loss=loss)
if step % 100 == 0 or s.should_save_now(step):
with s.save(step) as directory:
state.write(directory)
if s.should_stop(step):
break
else:
s.finished(last)
"""

from tidemill.training.checkpoint import Checkpoint, CheckpointError, Manifest, verify
from tidemill.training.environment import Identity, ResumePoint
from tidemill.training.session import Session, session

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Identity",
    "Manifest",
    "ResumePoint",
    "Session",
    "session",
    "verify",
]
