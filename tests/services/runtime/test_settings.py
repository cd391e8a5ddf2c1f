"""One precedence, every error says which setting, where it was given and what is expected."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from msgspec import Meta

from services.runtime.settings import CellSettings, SettingsError, load


class PumpSettings(CellSettings, frozen=True, kw_only=True):
    lease_ms: Annotated[int, Meta(ge=1, le=60_000, description="Time of a lease, 100% of it")] = (
        3_000
    )
    ratio: Annotated[float, Meta(gt=0, description="A ratio")] = 0.5
    fast: Annotated[bool, Meta(description="Be fast")] = False
    peers: Annotated[tuple[str, ...], Meta(description="Who else")] = ()
    mode: Annotated[Literal["a", "b"], Meta(description="Which")] = "a"


class StrictSettings(CellSettings, frozen=True, kw_only=True):
    token_file: Annotated[str, Meta(description="Path of the token")]


def pump(
    *argv: str,
    environ: dict[str, str] | None = None,
    file: str | None = None,
    tmp_path: Path | None = None,
) -> PumpSettings:
    flags = list(argv)
    if file is not None:
        assert tmp_path is not None
        (tmp_path / "cell.toml").write_text(file)
        flags += ["--config", str(tmp_path / "cell.toml")]
    return load(PumpSettings, "pump", flags, environ or {})


def test_without_anything_the_defaults_hold() -> None:
    assert pump() == PumpSettings()


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = '[pump]\nlease_ms = 1\nratio = 0.25\nmode = "b"\n'
    environ = {"TIDEMILL_PUMP_LEASE_MS": "2", "TIDEMILL_PUMP_RATIO": "0.75"}
    settings = pump("--lease-ms", "3", environ=environ, file=file, tmp_path=tmp_path)
    assert (settings.lease_ms, settings.ratio, settings.mode, settings.fast) == (
        3,
        0.75,
        "b",
        False,
    )


def test_shared_settings_are_read_from_the_top_of_the_file_and_from_names_without_the_service(
    tmp_path: Path,
) -> None:
    settings = pump(
        environ={"TIDEMILL_LOG_LEVEL": "debug"}, file='cell = "c1"\n', tmp_path=tmp_path
    )
    assert (settings.cell, settings.log_level) == ("c1", "debug")


def test_a_table_may_set_a_shared_setting_for_one_service(tmp_path: Path) -> None:
    file = 'log_level = "error"\n[pump]\nlog_level = "debug"\n'
    assert pump(file=file, tmp_path=tmp_path).log_level == "debug"


def test_tables_of_other_services_are_theirs(tmp_path: Path) -> None:
    assert pump(file="[other]\nanything = 1\n", tmp_path=tmp_path) == PumpSettings()


def test_the_config_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("[pump]\nlease_ms = 7\n")
    assert pump(environ={"TIDEMILL_CONFIG": str(tmp_path / "x.toml")}).lease_ms == 7


@pytest.mark.parametrize(("text", "value"), [("", ()), ("a", ("a",)), (" a , b,", ("a", "b"))])
def test_a_list_is_given_with_commas(text: str, value: tuple[str, ...]) -> None:
    assert pump(environ={"TIDEMILL_PUMP_PEERS": text}).peers == value


def test_a_switch_can_be_turned_on_and_off() -> None:
    assert pump("--fast").fast
    assert pump(environ={"TIDEMILL_PUMP_FAST": "true"}).fast
    assert not pump("--no-fast", environ={"TIDEMILL_PUMP_FAST": "true"}).fast


@pytest.mark.parametrize(
    ("argv", "environ", "file", "message"),
    [
        (["--lease-ms", "0"], {}, None, "flag --lease-ms: '0': Expected `int` >= 1"),
        (
            [],
            {"TIDEMILL_PUMP_LEASE_MS": "x"},
            None,
            "environment variable TIDEMILL_PUMP_LEASE_MS: 'x'",
        ),
        ([], {}, "[pump]\nlease_ms = true\n", r"cell.toml, table \[pump\], key lease_ms: True"),
        (
            [],
            {},
            "[pump]\nlease_m = 1\n",
            r"table \[pump\]: no setting 'lease_m'; did you mean 'lease_ms'",
        ),
        ([], {}, "cel = 1\n", "no setting 'cel'; did you mean 'cell'"),
        ([], {}, "lease_ms = 1\n", "no setting 'lease_ms'"),
        ([], {}, "[pumps]\nlease_ms = 1\n", r"no table \[pumps\]; did you mean \[pump\]"),
        ([], {"TIDEMILL_PUMP_LEASE": "1"}, None, "did you mean 'TIDEMILL_PUMP_LEASE_MS'"),
        (["--mode", "c"], {}, None, "flag --mode: 'c': Invalid enum value"),
        (["--cell", "a b"], {}, None, "flag --cell: 'a b'"),
        ([], {}, "not toml", "is not TOML"),
    ],
)
def test_an_error_names_the_setting_and_where_it_was_given(
    argv: list[str], environ: dict[str, str], file: str | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=message):
        pump(*argv, environ=environ, file=file, tmp_path=tmp_path)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        pump("--config", str(tmp_path / "none.toml"))


def test_a_required_setting_is_asked_for() -> None:
    with pytest.raises(SettingsError, match="token_file is required: give --token-file"):
        load(StrictSettings, "strict", [], {})
    assert load(StrictSettings, "strict", ["--token-file", "t"], {}).token_file == "t"


def test_help_names_every_setting_with_its_default_and_its_variable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="0"):
        load(PumpSettings, "pump", ["--help"], {}, summary="Pumps.")
    text = " ".join(capsys.readouterr().out.split())
    assert "Pumps." in text
    for field in PumpSettings.__struct_fields__:
        assert f"--{field.replace('_', '-')}" in text
    assert (
        "Time of a lease, 100% of it (default: 3000; environment: TIDEMILL_PUMP_LEASE_MS)" in text
    )
    assert "(default: main; environment: TIDEMILL_CELL)" in text


def test_an_unknown_flag_ends_the_process_with_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        pump("--leas-ms", "1")
    assert "unrecognized arguments: --leas-ms" in capsys.readouterr().err


def test_the_home_of_a_cell_is_its_directory_or_one_by_its_name(tmp_path: Path) -> None:
    assert pump("--directory", str(tmp_path)).home == tmp_path
    assert pump("--cell", "c9").home.parts[-3:] == ("share", "tidemill", "c9")
