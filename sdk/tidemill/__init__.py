"""Tidemill for trainers and submitters: the client, the command line and the generated messages.

It must never import a server package: a trainer installs this distribution alone. Names are loaded when first used,
so that a trainer pays for nothing but `tidemill.training`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.client import Client
    from tidemill.errors import TidemillError
    from tidemill.jobfile import job_request

__all__ = ["Client", "TidemillError", "job_request"]

_HOME = {"Client": "client", "TidemillError": "errors", "job_request": "jobfile"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"tidemill.{_HOME[name]}"), name)
    raise AttributeError(f"module 'tidemill' has no attribute {name!r}")
