"""`python -m services.gateway`: the same as `tidemilld gateway`."""

import sys

from services.gateway.service import main
from services.runtime.cli import run

sys.exit(run(main, sys.argv[1:]))
