"""docs/reference/metrics.md is what the services of a cell serve, name by name, with type, labels and meaning."""

from __future__ import annotations

import io
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.health.host import Host
from services.projector.service import Observer
from services.runtime.settings import CellSettings
from services.runtime.telemetry import Telemetry
from services.runtime.trial import TrialCell
from tidemill import job_request

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"\| `(tidemill_\w+)` \| (\w+) \| ([\w, ]*) \| (.*) \|")
# Of each metric by its name: type, labels, meaning.
Shown: TypeAlias = dict[str, tuple[str, set[str], str]]


def documented(service: str) -> Shown:
    """The rows of a service on the page, with those of every service."""
    sections = dict(re.findall(r"(?ms)^## ([\w ]+)\n(.*?)(?=^## |\Z)", PAGE.read_text()))
    rows = ROW.findall(sections["Every service"] + sections[service.capitalize()])
    return {
        name: (kind, set(filter(None, labels.split(", "))), text)
        for name, kind, labels, text in rows
    }


def served(text: str) -> Shown:
    """What a scrape shows; labels are known of metrics that have a sample."""
    shown: Shown = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("tidemill_"):
            total = "_total" if family.type == "counter" else ""
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            shown[family.name + total] = (family.type, labels, family.documentation)
    return shown


@pytest.fixture(scope="module")
def scrapes() -> dict[str, str]:
    """Of each service of a cell that has run a job."""
    flags = ("--fake-gpus", "2xH100", "--log-format", "json")
    with TrialCell("metrics", agents=1, flags=flags) as cell, cell.client() as client:
        job = client.submit(job_request({"name": "one", "command": ["true"], "gpus": 1})).job
        client.wait(job, timeout_s=60)
        return dict(scraped((cell.directory / "up.log").read_text()))


def scraped(log: str) -> Iterator[tuple[str, str]]:
    for line in log.splitlines():
        if '"monitor_listens"' in line:
            said = json.loads(line)
            with urllib.request.urlopen(f"http://{said['address']}/metrics", timeout=10) as answer:
                yield said["service"], answer.read().decode()


def agrees(service: str, text: str) -> bool:
    page, live = documented(service), served(text)
    for name, (_, labels, _) in live.items():
        live[name] = (live[name][0], labels or page.get(name, ("", set(), ""))[1], live[name][2])
    assert live == page
    return True


@pytest.mark.parametrize("service", ["scheduler", "gateway", "agent"])
def test_the_page_is_what_a_service_serves(scrapes: dict[str, str], service: str) -> None:
    assert agrees(service, scrapes[service])


def test_the_page_is_what_health_serves_on_either_host(scrapes: dict[str, str]) -> None:
    more = Host.gauges(SimpleNamespace(active=True, behind=0, held_back=0))  # type: ignore[arg-type]
    on_streams = "".join(
        f"# HELP tidemill_{name} {text}\n# TYPE tidemill_{name} gauge\ntidemill_{name} {float(value)}\n"
        for name, text, value in more
    )
    assert agrees("health", scrapes["health"] + on_streams)


def test_the_page_is_what_a_projector_serves() -> None:
    telemetry = Telemetry(CellSettings(), "projector", stream=io.StringIO())
    try:
        Observer(telemetry)
        assert agrees("projector", generate_latest(telemetry.registry).decode())
    finally:
        telemetry.close()
