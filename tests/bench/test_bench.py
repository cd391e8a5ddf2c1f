"""Benchmarks are found by file name and answer with one JSON object, whose names other programs rely on."""

import json
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import registry
from bench.registry import at_least, at_most


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert bench.main(argv) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    answer: dict[str, object] = json.loads(last)
    return answer


def test_the_list_names_every_benchmark_with_its_summary(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == registry.names()
    assert {"fold", "recovery", "submit", "place", "failover", "idle", "trace"} <= set(
        registry.names()
    )
    assert all(len(line.split()) > 3 for line in lines)


@pytest.mark.parametrize("name", registry.names())
def test_every_benchmark_runs_by_its_name_and_has_complete_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        bench.main([name, "--help"])
    text = capsys.readouterr().out
    assert "--json FILE" in text
    assert "--scale {small,full}" in text
    assert callable(registry.load(name).run)


def test_an_unknown_one_is_a_usage_error_with_a_suggestion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench.main(["folt"]) == 2
    assert "did you mean 'fold'" in capsys.readouterr().err


def test_fold_answers_in_the_documented_form(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "out" / "fold.json"
    answer = run(capsys, "fold", "--scale", "small", "--jobs", "500", "--json", str(file))
    assert json.loads(file.read_text()) == answer
    assert list(answer) == ["name", "commit", "machine", "params", "figures", "bars"]
    figures, bars, params = answer["figures"], answer["bars"], answer["params"]
    assert isinstance(figures, dict)
    assert isinstance(bars, dict)
    assert isinstance(params, dict)
    assert {"facts_per_s", "log_mib_per_s"} <= set(figures)
    assert params["jobs"] == 500
    bar = bars["facts_per_s"]
    assert bar == {
        "value": figures["facts_per_s"], "want": ">= 250000", "ok": figures["facts_per_s"] >= 250_000,
    }  # fmt: skip


def test_a_bar_is_met_at_its_bound() -> None:
    assert [at_least(value, 2).ok for value in (1.9, 2, 3)] == [False, True, True]
    assert [at_most(value, 2).ok for value in (1.9, 2, 2.1)] == [True, True, False]
    assert at_most(1, 250).want == "<= 250"
