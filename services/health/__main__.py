"""`python -m services.health`: the same as `tidemilld health`."""

import sys

from services.health.service import main
from services.runtime.cli import run

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
