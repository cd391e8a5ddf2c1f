"""Finds Java, Maven and Go, and says exactly what to install when one is missing or too old.

It must never install anything unless it was asked to, and then only through apt as root.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compose.local.errors import StackError

VERSION_WAIT_S: Final = 30
# The first Go that fetches a newer toolchain by itself when a module asks for one.
GO_FETCHES_TOOLCHAINS: Final = (1, 21)

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tool:
    """A program of the machine that the stack cannot do without."""

    command: str
    purpose: str
    version_flag: str
    version_pattern: str
    minimum: Version
    apt: str
    elsewhere: str
    home: str = ""


def java(minimum: str) -> Tool:
    return Tool(
        command="java",
        purpose="to run Kafka",
        version_flag="-version",
        version_pattern=r'version "(\d+(?:\.\d+)*)',
        minimum=version_of(minimum),
        apt=f"openjdk-{minimum}-jre-headless",
        elsewhere=f"any JDK or JRE {minimum}+; JAVA_HOME chooses one that is not on PATH",
        home="JAVA_HOME",
    )


def maven() -> Tool:
    return Tool(
        command="mvn",
        purpose="to fetch Kafka's jars (once; they are cached)",
        version_flag="-version",
        version_pattern=r"Apache Maven (\d+(?:\.\d+)*)",
        minimum=(3, 6),
        apt="maven",
        elsewhere="Apache Maven 3.6+; MAVEN_HOME chooses one that is not on PATH",
        home="MAVEN_HOME",
    )


def go(minimum: str) -> Tool:
    return Tool(
        command="go",
        purpose="to build etcd (once; it is cached)",
        version_flag="version",
        version_pattern=r"go version go(\d+(?:\.\d+)*)",
        minimum=version_of(minimum),
        apt="golang-go",
        elsewhere=f"Go {minimum}+ from its own site; GOROOT chooses one that is not on PATH",
        home="GOROOT",
    )


def version_of(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


def require(tool: Tool, *, install: bool = False) -> Path:
    """The path of the tool, installed first if that is allowed and needed.

    Raises:
        StackError: it is missing or too old; the message names what to install.
    """
    fault = _fault(tool)
    if fault and install:
        _apt_install(tool)
        fault = _fault(tool)
    path = _find(tool)
    if fault or path is None:
        raise StackError(_advice(tool, fault))
    return path


def _fault(tool: Tool) -> str:
    """What is wrong with the tool as it is on this machine; empty when nothing is."""
    path = _find(tool)
    if path is None:
        return "it was not found"
    found = _version(tool, path)
    if found is None:
        return f"{path} does not tell its version"
    if found >= tool.minimum or (tool.command == "go" and _go_will_fetch(found)):
        return ""
    return f"{path} is version {'.'.join(map(str, found))}"


def _find(tool: Tool) -> Path | None:
    home = os.environ.get(tool.home, "")
    if home and (path := Path(home, "bin", tool.command)).is_file():
        return path
    found = shutil.which(tool.command)
    return Path(found) if found else None


def _version(tool: Tool, path: Path) -> Version | None:
    command = [str(path), tool.version_flag]
    try:
        told = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=VERSION_WAIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(tool.version_pattern, told.stdout + told.stderr)
    return version_of(match[1]) if match else None


def _go_will_fetch(found: Version) -> bool:
    return found >= GO_FETCHES_TOOLCHAINS and os.environ.get("GOTOOLCHAIN") != "local"


def _apt_install(tool: Tool) -> None:
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise StackError(_advice(tool, "--install works on Debian and Ubuntu as root only"))
    print(f"installing {tool.apt} {tool.purpose}", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "--no-install-recommends", "-y", tool.apt]):
        command = ["apt-get", "-qq", *arguments]
        done = subprocess.run(command, env=quiet, check=False, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise StackError(
                _advice(tool, f"`{' '.join(command)}` failed: {''.join(last) or done.returncode}")
            )


def _advice(tool: Tool, fault: str) -> str:
    minimum = ".".join(map(str, tool.minimum))
    return (
        f"`{tool.command}` {minimum} or newer is needed {tool.purpose}, but {fault}.\n"
        f"  Debian, Ubuntu: sudo apt-get install {tool.apt}\n"
        f"  elsewhere:      {tool.elsewhere}\n"
        f"  as root on Debian, `python -m compose.local.build --install` does it"
    )
