"""One place pins the versions; the files that must repeat one agree with it."""

import re
import tomllib
from pathlib import Path

import pytest

from compose import versions
from compose.local import build

ROOT = Path(__file__).resolve().parents[2]
ETCD = Path(build.ETCD)


def test_go_module_builds_the_pinned_etcd() -> None:
    required = re.findall(
        r"(?m)^\tgo\.etcd\.io/etcd/(?:server|etcdctl)/v3 v(\S+)$", (ETCD / "go.mod").read_text()
    )
    assert required == [versions.pinned()["ETCD_VERSION"]] * 2


def test_locked_jars_are_those_of_the_pinned_kafka() -> None:
    pinned, jars = versions.pinned(), build.read_sums(build.JAR_SUMS)
    scala, kafka, log4j = (pinned[f"{name}_VERSION"] for name in ("SCALA", "KAFKA", "LOG4J"))
    assert {
        f"kafka_{scala}-{kafka}.jar",
        f"kafka-tools-{kafka}.jar",
        f"log4j-slf4j-impl-{log4j}.jar",
    } <= jars.keys()
    assert [name for name in jars if re.match(r"kafka[-_]", name) and kafka not in name] == []


@pytest.mark.parametrize("project", [ROOT, ROOT / "sdk"], ids=["server", "sdk"])
def test_images_are_named_after_the_version_of_the_project(project: Path) -> None:
    declared = tomllib.loads((project / "pyproject.toml").read_text())["project"]["version"]
    assert versions.pinned()["TIDEMILL_VERSION"] == declared


def test_pom_repeats_no_version_and_names_no_repository() -> None:
    pom = (build.KAFKA / "pom.xml").read_text()
    assert re.findall(r"<version>([^<]*)</version>", pom) == [
        "1",
        "${kafka.version}",
        "${kafka.version}",
        "${log4j.version}",
    ]
    assert "repositor" not in pom.lower().split("-->", 1)[1]


@pytest.mark.parametrize("text", ["KAFKA", "KAFKA=", "=1", "a-b=1", "A=1\nA=2", " A = 1"])
def test_a_line_that_pins_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line"):
        versions.parse(text)


def test_comments_and_blank_lines_are_passed_over() -> None:
    assert versions.parse("# why\n\nA_VERSION=1.2\n") == {"A_VERSION": "1.2"}
