"""The command `tidemill`. Nothing heavy is imported before a command needs it: help must come at once."""

from __future__ import annotations


def main() -> None:
    """Run the command line; the process ends with one of EXIT_CODES."""
    import sys

    from tidemill.cli.app import app

    try:
        app()
    except Exception as error:  # noqa: BLE001  # what a command foresees never comes here
        import traceback

        traceback.print_exc()
        print(f"error: a defect in tidemill: {error!r}\n  next: tidemill doctor", file=sys.stderr)
        sys.exit(70)
