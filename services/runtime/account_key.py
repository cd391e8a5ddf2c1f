"""`tidemilld account-key`: print the key with which a service account signs what it writes to topics by itself.

    tidemilld account-key service:ci [--key FILE | --cell NAME --directory DIR]

The key follows from the cell's key and the account's name, so it is stored nowhere. It opens nothing until a gateway
names the account in `outside_accounts`; taking the account out of there takes it back.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from services.runtime import settings as runtime_settings
from services.runtime.exits import ExitCode
from services.runtime.settings import CellSettings, SettingsError
from services.runtime.tokens import (
    CELL_KEY_FILE,
    KEYS_DIRECTORY,
    TokensError,
    account_key,
    read_key,
)


def main(argv: Sequence[str]) -> int:
    """Print one line; answers the exit code. Raises SettingsError."""
    parser = argparse.ArgumentParser(
        prog="tidemilld account-key",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Every setting of a service, such as --cell and --directory, may be given too.",
    )
    parser.add_argument("principal", metavar="PRINCIPAL", help="the account, as service:ci")
    parser.add_argument("--key", help="file of the cell's key (default: one in its directory)")
    given, rest = parser.parse_known_args(argv)
    settings = runtime_settings.load(CellSettings, "account-key", rest)
    file = Path(given.key) if given.key else settings.home / KEYS_DIRECTORY / CELL_KEY_FILE
    try:
        print(account_key(read_key(file.expanduser()), given.principal))
    except TokensError as error:
        raise SettingsError(str(error)) from error
    return ExitCode.STOPPED
