"""Runs the agent as `python -m services.agent`, for when the command is not installed."""

import sys

from services.agent.service import main
from services.runtime.cli import run

if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
