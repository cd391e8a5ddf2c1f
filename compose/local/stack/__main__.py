"""`python -m compose.local.stack`; everything is in cli.py."""

import sys

from compose.local.stack.cli import main

sys.exit(main())
