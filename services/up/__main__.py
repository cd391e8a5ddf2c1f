"""python -m services.up."""

import sys

from services.runtime.cli import run
from services.up.service import main

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
