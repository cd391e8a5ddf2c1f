"""The generated messages: fresh, validated by their own rules, and free of the rules' schema."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from protovalidate import Validator
from protovalidate._gen.buf.validate import validate_pb

from tidemill.v1 import requests_pb2
from tools import facts_reference, protos

FACTS_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "facts.md"
RULES_SCHEMA = "buf/validate/validate.proto"


def test_the_page_of_facts_is_fresh() -> None:
    assert FACTS_PAGE.read_text() == facts_reference.page(), "run `make proto` and commit it"


def rules_of(message: requests_pb2.Request) -> dict[str, str]:
    """Violated rules by the path of the field."""
    rules = {}
    for violation in (found.proto for found in Validator().collect_violations(message)):
        assert violation.field is not None
        path = ".".join(element.field_name for element in violation.field.elements)
        rules[path] = violation.rule_id
    return rules


def cancel(job: str, message: str = "") -> requests_pb2.Request:
    request = requests_pb2.Request(request="cli/1", gateway="g1")
    request.principal.name = "user:alice"
    request.cancel_job.job = job
    request.cancel_job.message = message
    return request


def test_a_valid_request_violates_no_rule() -> None:
    assert rules_of(cancel("ab12")) == {}


def test_each_broken_rule_is_reported_with_its_field() -> None:
    broken = cancel("", message="x" * 1025)
    broken.ClearField("principal")
    assert rules_of(broken) == {
        "principal": "required",
        "cancel_job.job": "string.min_len",
        "cancel_job.message": "string.max_len",
    }


def test_a_request_that_asks_nothing_is_reported() -> None:
    nothing = requests_pb2.Request(request="cli/1")
    nothing.principal.name = "user:alice"
    assert rules_of(nothing) == {"kind": "required"}


def test_importing_the_sdk_does_not_register_the_schema_of_the_rules() -> None:
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindFileByName(RULES_SCHEMA)


def test_a_program_may_register_the_public_schema_beside_the_sdk() -> None:
    program = (
        "from google.protobuf import descriptor_pool, descriptor_pb2\n"
        "from tidemill.v1 import requests_pb2\n"
        "theirs = descriptor_pb2.FileDescriptorProto(name='buf/validate/validate.proto', package='buf.validate')\n"
        "descriptor_pool.Default().Add(theirs)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_dropping_an_import_moves_up_the_public_imports_behind_it() -> None:
    file = FileDescriptorProto(
        name="a.proto", dependency=["x.proto", RULES_SCHEMA, "y.proto"], public_dependency=[0, 2]
    )
    schema = FileDescriptorProto(name=RULES_SCHEMA)
    (slim,) = protos.without_rules_schema(FileDescriptorSet(file=[schema, file])).file
    assert list(slim.dependency) == ["x.proto", "y.proto"]
    assert list(slim.public_dependency) == [0, 1]


@pytest.fixture(scope="module")
def our_rules(tmp_path_factory: pytest.TempPathFactory) -> FileDescriptorProto:
    image = tmp_path_factory.mktemp("rules") / "rules.binpb"
    protos.buf(
        "build", "--as-file-descriptor-set", "--path", f"protos/{RULES_SCHEMA}", "-o", str(image)
    )
    files = {file.name: file for file in FileDescriptorSet.FromString(image.read_bytes()).file}
    return files[RULES_SCHEMA]


def numbers(file: FileDescriptorProto) -> set[tuple[str, str, int, int, str]]:
    """(message, field, number, type, type name) of every field, extensions and enum values too."""
    fields = {
        (message.name, field.name, field.number, field.type, field.type_name)
        for message in file.message_type
        for field in message.field
    }
    extensions = {(e.extendee, e.name, e.number, e.type, e.type_name) for e in file.extension}
    values = {(enum.name, v.name, v.number, 0, "") for enum in file.enum_type for v in enum.value}
    return fields | extensions | values


def test_our_subset_of_the_rules_has_the_numbers_of_the_installed_validator(
    our_rules: FileDescriptorProto,
) -> None:
    theirs = FileDescriptorProto.FromString(validate_pb.desc().proto.to_binary())
    assert numbers(our_rules) - numbers(theirs) == set()
    assert len(numbers(our_rules)) > 100


def test_every_proto_file_of_the_package_is_generated() -> None:
    sources = {path.stem for path in (protos.ROOT / "protos" / protos.PACKAGE).glob("*.proto")}
    generated = {path.name for path in Path(requests_pb2.__file__).parent.glob("*_pb2.py")}
    assert generated == {f"{stem}_pb2.py" for stem in sources}
