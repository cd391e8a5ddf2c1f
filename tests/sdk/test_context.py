"""Which cell is meant: flags, then the environment, then a context, then an embedded cell; tokens stay with theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.context import Context, discover
from tidemill.errors import UsageError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def env(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), **more}


def configure(home: Path, text: str) -> Path:
    path = home / ".config/tidemill/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def embed(home: Path, name: str, address: str) -> Path:
    directory = home / ".local/share/tidemill" / name
    directory.mkdir(parents=True)
    (directory / "gateway.addr").write_text(address + "\n")
    (directory / "token").write_text(f"token-of-{name}\n")
    return directory


LAB = """\
current = "lab"
[contexts.lab]
gateway = "lab:7443"
token = "lab-token"
[contexts.far]
gateway = "tls://far:443"
token_file = "TOKEN_FILE"
ca = "/etc/ca.pem"
"""


def test_flags_win_over_everything(home: Path) -> None:
    configure(home, LAB)
    found = discover(
        gateway="g:1", token="t", env=env(home, TIDEMILL_GATEWAY="e:1", TIDEMILL_TOKEN="e")
    )
    assert found == Context("g:1", "t", "--gateway")


def test_the_environment_wins_over_contexts(home: Path) -> None:
    configure(home, LAB)
    found = discover(env=env(home, TIDEMILL_GATEWAY="e:1", TIDEMILL_TOKEN="e"))
    assert found == Context("e:1", "e", "TIDEMILL_GATEWAY")


def test_a_named_context_wins_over_the_environment(home: Path) -> None:
    path = configure(home, LAB.replace("TOKEN_FILE", str(home / "far.token")))
    (home / "far.token").write_text("far-token\n")
    found = discover(context="far", env=env(home, TIDEMILL_GATEWAY="e:1"))
    assert found == Context("tls://far:443", "far-token", f"context 'far' in {path}", "/etc/ca.pem")


def test_the_current_context_wins_over_embedded_cells(home: Path) -> None:
    path = configure(home, LAB)
    embed(home, "local", "127.0.0.1:5")
    assert discover(env=env(home)) == Context("lab:7443", "lab-token", f"context 'lab' in {path}")


def test_the_only_embedded_cell_is_found_by_itself(home: Path) -> None:
    directory = embed(home, "local", "127.0.0.1:5")
    assert discover(env=env(home)) == Context(
        "127.0.0.1:5", "token-of-local", f"cell at {directory}"
    )


def test_an_embedded_cell_is_meant_by_name_or_directory(home: Path) -> None:
    embed(home, "a", "127.0.0.1:5")
    directory = embed(home, "b", "127.0.0.1:6")
    assert discover(cell="b", env=env(home)).gateway == "127.0.0.1:6"
    assert discover(cell=str(directory), env=env(home)).token == "token-of-b"
    assert discover(env=env(home, TIDEMILL_CELL="a")).gateway == "127.0.0.1:5"


def test_among_several_embedded_cells_none_is_guessed(home: Path) -> None:
    embed(home, "a", "127.0.0.1:5")
    embed(home, "b", "127.0.0.1:6")
    with pytest.raises(UsageError) as caught:
        discover(env=env(home))
    assert (caught.value.why, caught.value.next_command) == (
        "several run here: a, b",
        "tidemill --cell a doctor",
    )


def test_the_token_of_one_cell_is_never_sent_to_another(home: Path) -> None:
    configure(home, LAB)
    embed(home, "local", "127.0.0.1:5")
    assert discover(gateway="evil:1", env=env(home)).token == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "no cell to talk to"),
        ({"cell": "x"}, "it holds no gateway.addr"),
        ({"context": "x"}, "no context 'x'"),
    ],
)
def test_nothing_found_says_what_was_looked_for(
    home: Path, arguments: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        discover(env=env(home), **arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("current =", "is not valid TOML"),
        ('current = "x"\n', "known contexts: none"),
        ('current = "x"\n[contexts.x]\n', "names no gateway"),
        (
            'current = "x"\n[contexts.x]\ngateway = "g"\ntoken_file = "/nowhere"\n',
            "cannot read /nowhere",
        ),
    ],
)
def test_a_configuration_that_is_wrong_is_named(home: Path, text: str, message: str) -> None:
    configure(home, text)
    with pytest.raises(UsageError, match=message):
        discover(env=env(home))


def test_a_context_never_shows_its_token() -> None:
    assert "secret" not in repr(Context("g:1", "secret", "flags"))
