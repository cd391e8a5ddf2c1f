"""The repository's own promises: documented commands, files that say what they own, pure layers."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
GENERATED: Final = re.compile(r"_pb2(_grpc)?\.pyi?$")
FILE_LINES: Final = 700
FUNCTION_LINES: Final = 60
# Standard library aside, all that these layers may import.
MAY_IMPORT: Final = {
    "statemachines": {"msgspec", "statemachines"},
    "planning": {"msgspec", "numpy", "planning", "statemachines"},
}


def committed(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "-z", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name and not GENERATED.search(name)]
    return [path for path in paths if path.is_file()]


def targets() -> set[str]:
    return set(re.findall(r"(?m)^([a-z][a-z-]*):", (ROOT / "Makefile").read_text()))


def code_in(document: Path) -> str:
    """What a document shows as code, fenced or inline."""
    text = document.read_text()
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL))


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_every_python_file_opens_with_what_it_owns() -> None:
    files = committed("*.py")
    silent = [path for path in files if not ast.get_docstring(parsed(path))]
    assert (len(files) > 10, [str(path.relative_to(ROOT)) for path in silent]) == (True, [])


def test_no_file_and_no_function_outgrows_a_reader() -> None:
    """Files aim at 400 lines and functions at 10; these are the walls (a flat match is long)."""
    long = {}
    for path in committed("*.py"):
        text, name = path.read_text(), str(path.relative_to(ROOT))
        if (lines := text.count("\n")) > FILE_LINES:
            long[name] = lines
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if (lines := node.end_lineno - node.lineno + 1) > FUNCTION_LINES:
                    long[f"{name}: {node.name}"] = lines
    assert long == {}


def test_every_target_is_explained_in_the_contribution_guide() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert {name for name in targets() if f"| `make {name}` |" not in guide} == set()


@pytest.mark.parametrize(
    "document", committed("*.md"), ids=lambda path: str(path.relative_to(ROOT))
)
def test_commands_in_documents_exist(document: Path) -> None:
    code = code_in(document)
    unknown = {name for name in re.findall(r"\bmake ([a-z][a-z-]*)", code) if name not in targets()}
    for module in re.findall(r"python3? -m ([a-z_][\w.]*)", code):
        file = ROOT / module.replace(".", "/")
        if not (file.with_suffix(".py").is_file() or (file / "__main__.py").is_file()):
            unknown.add(module)
    for program in re.findall(r"\.venv/bin/([\w.-]+)", code):
        if not (Path(sys.executable).parent / program).exists():
            unknown.add(program)
    assert unknown == set()


def local_links(document: Path) -> Iterator[tuple[str, Path]]:
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
        if not re.match(r"[a-z]+:", link):
            yield link, (document.parent / link).resolve()


@pytest.mark.parametrize(
    "document", committed("*.md"), ids=lambda path: str(path.relative_to(ROOT))
)
def test_links_between_documents_lead_somewhere_inside_the_repository(document: Path) -> None:
    broken = [
        link
        for link, target in local_links(document)
        if not (target.exists() and target.is_relative_to(ROOT))
    ]
    assert broken == []


def test_no_file_names_the_folder_that_this_checkout_lies_in() -> None:
    here = re.compile(re.escape(str(ROOT)) + r"(?![\w-])")
    texts = [path for path in committed() if b"\0" not in path.read_bytes()]
    found = [str(p.relative_to(ROOT)) for p in texts if here.search(p.read_text(errors="replace"))]
    assert found == []


@pytest.mark.parametrize("layer", sorted(MAY_IMPORT))
def test_the_core_imports_only_the_standard_library_and_what_it_is_allowed(layer: str) -> None:
    allowed = MAY_IMPORT[layer] | set(sys.stdlib_module_names)
    foreign = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in committed(f"{layer}/**.py", f"{layer}/*.py")
        for node in ast.walk(parsed(path))
        for module in imported_by(node)
        if module.split(".", 1)[0] not in allowed
    }
    assert foreign == set()


def imported_by(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [name.name for name in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
        case _:
            return []


def test_every_declared_command_loads() -> None:
    servers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sdk = tomllib.loads((ROOT / "sdk" / "pyproject.toml").read_text())["project"]
    declared = {**servers["scripts"], **sdk["scripts"]}
    declared |= servers["entry-points"]["tidemilld.commands"]
    installed = {
        point.name: point
        for group in ("console_scripts", "tidemilld.commands")
        for point in entry_points(group=group)
        if point.name in declared
    }
    assert {name: point.value for name, point in installed.items()} == declared
    assert all(callable(point.load()) for point in installed.values())


def test_every_decision_is_in_the_index_under_its_title() -> None:
    folder = ROOT / "docs" / "decisions"
    titles = {
        path.name: path.read_text().partition("\n")[0].removeprefix("# ").partition(". ")
        for path in folder.glob("0*.md")
    }
    wanted = [
        f"| {number} | [{title}]({name}) |" for name, (number, _, title) in sorted(titles.items())
    ]
    assert re.findall(r"(?m)^\| \d+ \|.*$", (folder / "README.md").read_text()) == wanted


def test_the_glossary_is_in_order() -> None:
    words = re.findall(r"(?m)^\| ([a-z ]+) \|", (ROOT / "docs" / "glossary.md").read_text())
    assert words[0] == "word"
    assert words[1:] == sorted(words[1:])
