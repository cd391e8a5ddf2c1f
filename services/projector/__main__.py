"""`python -m services.projector`: the same as `tidemilld projector`."""

import sys

from services.projector.service import main
from services.runtime.cli import run

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
