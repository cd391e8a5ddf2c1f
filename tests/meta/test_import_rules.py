"""The import contracts refuse what they name, and cover every package that exists."""

import re
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
LINT: Final = Path(sysconfig.get_path("scripts")) / "lint-imports"
LAYERS: Final = ("bench", "chaos", "planning", "services", "simulation", "statemachines")
SMALL_TREE: Final = (
    "bench/run.py",
    "chaos/run.py",
    "planning/plan.py",
    "services/agent/core.py",
    "services/gateway/core.py",
    "services/runtime/adapters/sqlite.py",
    "services/runtime/ports.py",
    "services/runtime/wiring.py",
    "simulation/world.py",
    "statemachines/job.py",
    "tidemill/client.py",
)
LEGAL: Final = (
    ("chaos/run.py", "simulation.world"),
    ("planning/plan.py", "statemachines.job"),
    ("services/agent/core.py", "services.runtime.ports"),
    ("services/agent/core.py", "services.runtime.wiring"),
    ("services/agent/core.py", "tidemill.client"),
    ("services/gateway/core.py", "planning.plan"),
    ("services/runtime/wiring.py", "services.runtime.adapters.sqlite"),
    ("simulation/world.py", "services.gateway.core"),
)

FORBIDDEN: Final = (
    ("statemachines/job.py", "planning.plan", "Layers"),
    ("planning/plan.py", "services.runtime.ports", "Layers"),
    ("services/gateway/core.py", "simulation.world", "Layers"),
    ("simulation/world.py", "bench.run", "Layers"),
    ("statemachines/job.py", "time", "The core is pure"),
    ("statemachines/job.py", "os.path", "The core is pure"),
    ("planning/plan.py", "random", "The core is pure"),
    ("planning/plan.py", "google.protobuf.message", "The core is pure"),
    ("services/gateway/core.py", "services.runtime.adapters.sqlite", "Only the wiring"),
    ("services/runtime/ports.py", "services.runtime.adapters.sqlite", "Only the wiring"),
    ("simulation/world.py", "services.runtime.adapters.sqlite", "Only the wiring"),
    ("services/agent/core.py", "services.gateway.core", "Deployables never"),
    ("services/runtime/ports.py", "services.gateway.core", "Deployables never"),
    ("tidemill/client.py", "services.runtime.ports", "The SDK imports no"),
    ("tidemill/client.py", "statemachines.job", "The SDK imports no"),
)


def lint(tree: Path, imports: tuple[tuple[str, str], ...]) -> str:
    """Write a small repository with these imports and return what the contracts say of it."""
    for path in SMALL_TREE:
        file = tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        for folder in [file.parent, *file.parent.parents]:
            if folder != tree and tree in folder.parents:
                (folder / "__init__.py").touch()
        file.write_text("".join(f"import {module}\n" for at, module in imports if at == path))
    every = ", ".join(f'"{name}"' for name in (*LAYERS, "tidemill"))
    settings = (ROOT / "pyproject.toml").read_text()
    settings, replaced = re.subn(
        r"(?m)^root_packages = \[.*\]$", f"root_packages = [{every}]", settings
    )
    assert replaced == 1
    (tree / "pyproject.toml").write_text(settings)
    command = [str(LINT), "--no-logo", "--no-cache"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False).stdout


def test_imports_that_go_down_the_layers_are_kept(tmp_path: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    assert f"{len(contracts)} kept, 0 broken" in lint(tmp_path, LEGAL)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each contract says of a tree with every forbidden import, by the contract's name."""
    tree = tmp_path_factory.mktemp("tree")
    said = lint(tree, tuple((at, module) for at, module, _ in FORBIDDEN))
    return dict(re.findall(r"(?ms)^([^\n]+)\n-{9,}\n\n(.*?)(?=^[^\n]+\n-{9,}\n|\Z)", said))


@pytest.mark.parametrize(("at", "module", "contract"), FORBIDDEN)
def test_a_forbidden_import_breaks_its_contract(
    at: str, module: str, contract: str, broken: dict[str, str]
) -> None:
    (said,) = [text for name, text in broken.items() if name.startswith(contract)]
    ours = module.partition(".")[0] in LAYERS
    imported = module if ours else module.partition(".")[0]
    importer = at.removesuffix(".py").replace("/", ".")
    assert re.search(rf"(?m)^-\s+{importer} -> {imported} \(l\.", said), said


def test_every_package_that_exists_is_under_the_contracts() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    present = {name for name in LAYERS if any((ROOT / name).glob("**/*.py"))}
    assert set(settings["tool"]["importlinter"]["root_packages"]) == present | {"tidemill"}
