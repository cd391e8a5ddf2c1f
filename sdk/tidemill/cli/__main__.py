"""`python -m tidemill.cli` is `tidemill`."""

from tidemill.cli import main

main()
