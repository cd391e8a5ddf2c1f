"""The command `tidemill`. Nothing heavy is imported before a command needs it: help must come at once."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from tidemill.cli.app import app

    app()
