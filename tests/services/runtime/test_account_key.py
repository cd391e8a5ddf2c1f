"""The key of a service account, as an operator gets it."""

from pathlib import Path

import pytest

from services.runtime.account_key import main
from services.runtime.settings import SettingsError
from services.runtime.tokens import account_key, prepare_keys


def test_the_key_is_printed_and_is_the_one_that_a_gateway_computes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell_key = prepare_keys(tmp_path).cell_key
    assert main(["service:ci", "--directory", str(tmp_path)]) == 0
    assert main(["service:ci", "--key", str(tmp_path / "keys" / "cell.key")]) == 0
    assert capsys.readouterr().out.split() == [account_key(cell_key, "service:ci")] * 2


@pytest.mark.parametrize("argv", [["service:ci", "--key", "/absent"], ["ci"]])
def test_what_cannot_be_is_said(argv: list[str], tmp_path: Path) -> None:
    prepare_keys(tmp_path)
    with pytest.raises(SettingsError, match=r"no key can be read|is not like `service:ci`"):
        main([*argv, "--directory", str(tmp_path)])
