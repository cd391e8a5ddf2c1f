"""`python -m services.scheduler`: the same as `tidemilld scheduler`."""

import sys

from services.runtime.cli import run
from services.scheduler.service import main

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
