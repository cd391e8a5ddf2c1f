"""What each distribution installs: the SDK alone stays light, and neither ships tests or tools."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
LAYERS: Final = ("bench", "chaos", "planning", "services", "simulation", "statemachines")
# Never loaded by `import tidemill`: the server's packages, and what a trainer should not pay for.
HEAVY: Final = (*LAYERS, "confluent_kafka", "faust", "msgspec", "numpy", "protovalidate", "pyetcd")


def present_layers() -> set[str]:
    return {name for name in LAYERS if any((ROOT / name).glob("**/*.py"))}


def wheel_names(project: Path, out: Path) -> set[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def top_level(names: set[str]) -> set[str]:
    return {name.split("/", 1)[0] for name in names if ".dist-info/" not in name}


def test_the_sdk_wheel_holds_the_sdk_and_nothing_else(tmp_path: Path) -> None:
    names = wheel_names(ROOT / "sdk", tmp_path)
    assert top_level(names) == {"tidemill"}
    assert {"tidemill/py.typed", "tidemill/v1/requests_pb2.pyi"} <= names


def test_the_server_wheel_holds_every_layer_that_exists_and_nothing_else(tmp_path: Path) -> None:
    assert top_level(wheel_names(ROOT, tmp_path)) == present_layers()


def test_both_distributions_have_one_version() -> None:
    server = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sdk = tomllib.loads((ROOT / "sdk" / "pyproject.toml").read_text())["project"]
    assert server["version"] == sdk["version"]
    assert f"tidemill=={sdk['version']}" in server["dependencies"]


@pytest.mark.parametrize("module", ["tidemill", "tidemill.v1.requests_pb2"])
def test_importing_the_sdk_loads_no_server_package_and_nothing_heavy(module: str) -> None:
    program = (
        f"import sys, {module}\n"
        f"loaded = {{name.split('.')[0] for name in sys.modules}} & set({HEAVY!r})\n"
        "sys.exit(', '.join(sorted(loaded)) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")
