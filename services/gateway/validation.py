"""Whether a message makes sense by itself: the rules of the protos, and those that a rule of a field cannot say.

Pure and native: microseconds a message. Never looks at the state of the cell; what depends on it the leader decides.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message
from protovalidate import Validator
from protovalidate import Violation as Found

from services.gateway.refusal import Refusal, Status, Violation
from services.runtime.ports import RECORD_BYTES_MAX
from tidemill.v1 import common_pb2, job_service_pb2

# Violations told at once; one who has more fixes these first.
VIOLATIONS_MAX: Final = 20
# A gang is placed by one fact, and an entry of the log stays under 900 KB.
MEMBERS_MAX: Final = 4096
# A launch is one blob. It is also less than what Linux takes of arguments and environment at exec.
LAUNCH_BYTES_MAX: Final = RECORD_BYTES_MAX

_VALIDATOR: Final = Validator()


def check(message: Message) -> None:
    """Raises Refusal with every field that breaks a rule of the protos."""
    found = _VALIDATOR.collect_violations(message)
    if found:
        _refuse(
            [Violation(_path(each), _said(each)) for each in found[:VIOLATIONS_MAX]], len(found)
        )


def check_submission(request: job_service_pb2.SubmitJobRequest) -> None:
    """The rules of the protos, and the bounds that hold over several fields."""
    check(request)
    violations = [*_name(request.spec), *_gang(request.spec), *_launch(request.launch)]
    if violations:
        _refuse(violations, len(violations))


def _name(spec: common_pb2.JobSpec) -> list[Violation]:
    """It goes into the environment of the job's programs."""
    if "\0" in spec.name:
        return [Violation("spec.name", "a NUL character can be in no name")]
    return []


def _gang(spec: common_pb2.JobSpec) -> list[Violation]:
    if len(spec.roles) == 1 and spec.roles[0].count <= MEMBERS_MAX:
        return []
    found = []
    members = sum(role.count for role in spec.roles)
    if members > MEMBERS_MAX:
        found.append(
            Violation("spec.roles", f"{members} members; a gang has at most {MEMBERS_MAX}")
        )
    names = [role.name for role in spec.roles]
    if len(set(names)) < len(names):
        found.append(Violation("spec.roles", "two roles have the same name"))
    return found


def _launch(launch: common_pb2.Launch) -> list[Violation]:
    found = []
    words = [*launch.argv, launch.workdir]
    if launch.env:
        words += launch.env
        words += launch.env.values()
    size = launch.ByteSize()
    if size > LAUNCH_BYTES_MAX:
        found.append(
            Violation(
                _largest_part(launch),
                f"command, environment and script have {size} bytes, and the cell keeps at most {LAUNCH_BYTES_MAX}: "
                "put what is large into a file that the nodes can read",
            )
        )
    marker = launch.marker
    words += (launch.checkpoint_root, marker.directory, marker.marker)
    if "\0" in "".join(words):
        found.append(Violation("launch", "a NUL character can be in no argument and no path"))
    return found


def _largest_part(launch: common_pb2.Launch) -> str:
    """Where to make it smaller."""
    sizes = {
        "launch.argv": sum(map(len, launch.argv)),
        "launch.env": sum(len(name) + len(value) for name, value in launch.env.items()),
        "launch.script": len(launch.script),
    }
    return max(sizes, key=lambda part: sizes[part])


def _path(found: Found) -> str:
    """Like spec.roles[0].count or launch.env["A"]."""
    words: list[str] = []
    for element in found.proto.field.elements if found.proto.field else ():
        words.append(f".{element.field_name}" if words else element.field_name)
        match element.subscript:
            case None:
                pass
            case subscript if subscript.field == "string_key":
                words.append(f'["{subscript.value}"]')
            case subscript:
                words.append(f"[{subscript.value}]")
    return "".join(words)


def _said(found: Found) -> str:
    return found.proto.message or f"breaks the rule {found.proto.rule_id}"


def _refuse(violations: list[Violation], count: int) -> None:
    first = violations[0]
    where = f"{first.field}: " if first.field else ""
    more = f" (and {count - 1} more)" if count > 1 else ""
    raise Refusal(
        Status.INVALID_ARGUMENT,
        "invalid",
        f"{where}{first.message}{more}",
        violations=tuple(violations),
    )
