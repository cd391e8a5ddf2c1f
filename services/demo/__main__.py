"""python -m services.demo."""

import sys

from services.demo.service import main
from services.runtime.cli import run

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
