"""The codec: protobuf messages to frozen values and back. Protobuf stops here and at the gRPC servicers.

Everything is derived from names: a fact's struct has the name and the fields of its message, an enum's members follow
the order of the wire's numbers, a map is a sorted tuple of pairs. A new fact therefore needs no line here, and a
mismatch fails when this module is imported. It never decides anything: what is void is the fold's business.

For speed each type's two directions are one expression, written from its fields and compiled once, as the standard
library does for named tuples: about 0.9 M simple facts/s from bytes, on one core. Values that thousands of facts share
are not even parsed twice: what is read are our messages with bytes in their place (`_stored_messages`).
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from services.runtime import chain
from statemachines.cluster import FOLD_VERSION
from statemachines.entry import Entry, Position, Recorded
from statemachines.facts import Fact, TermOpened
from statemachines.values import Grant, JobSpec, Reason, ResumePoint, Role
from tidemill.v1 import common_pb2, facts_pb2, log_pb2

E = TypeVar("E", bound=StrEnum)
V = TypeVar("V", bound=msgspec.Struct)


class CodecError(Exception):
    """Bytes that no version of ours wrote: void where they lie in a log, parked where they are an input."""


class UnknownFactError(Exception):
    """A newer version wrote this. If it extends the chain the reader must stop: it would fold to a wrong state.

    `entry` is its header without facts, by which the reader tells whether it extends the chain.
    """

    def __init__(self, what: str, entry: Entry | None = None) -> None:
        where = "" if entry is None else f" at offset {entry.offset}"
        super().__init__(
            f"the log holds {what}{where}, which this version does not know. "
            "Upgrade this process to the version that leads the cell."
        )
        self.what, self.entry = what, entry


# --- entries


def encode_body(consumed: Sequence[Position], facts: Sequence[Recorded]) -> bytes:
    """The body of an entry; equal arguments give equal bytes within one version of the protobuf library."""
    return join_body(consumed, [encode_fact(recorded) for recorded in facts])


def encode_fact(recorded: Recorded) -> bytes:
    """One fact as it lies in a body, by whose length a writer knows how large its entry grows."""
    fact = fact_message(recorded)
    return b"\x12" + _varint(len(fact)) + fact  # Field 2 of Body, with its length.


def fact_message(recorded: Recorded) -> bytes:
    """One fact by itself, a serialised tidemill.v1.Fact."""
    fields = _FACT_ENCODERS[type(recorded.fact)](recorded)
    return facts_pb2.Fact(**fields).SerializeToString(deterministic=True)


def join_body(consumed: Sequence[Position], facts: Sequence[bytes]) -> bytes:
    """The body of facts that `encode_fact` made; the same bytes as `encode_body`."""
    position = _ENCODERS[Position]
    head = log_pb2.Body(consumed=[position(each) for each in consumed])
    return b"".join([head.SerializeToString(deterministic=True), *facts])


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_entry(*, cell: str, term: int, prev: bytes, at_ms: int, body: bytes) -> bytes:
    """The record to append; its digest is chain.entry_digest of the same arguments."""
    entry = log_pb2.Entry(
        format=chain.FORMAT, cell=cell, term=term, prev=prev, at_ms=at_ms, body=body
    )
    return entry.SerializeToString(deterministic=True)


def decode_entry(offset: int, stored: bytes) -> Entry:
    """The entry stored at `offset`; raises CodecError (void) or UnknownFactError (stop, if it extends the chain)."""
    record = _parse(log_pb2.Entry, stored)
    if record.format == 0 or len(record.prev) != chain.DIGEST_BYTES:
        raise CodecError("not an entry: no format, or prev is not a digest")
    cell, term, prev, at_ms, body = record.cell, record.term, record.prev, record.at_ms, record.body
    digest = chain.entry_digest(prev=prev, cell=cell, term=term, at_ms=at_ms, body=body)
    header = Entry(offset, cell, term, prev, digest, at_ms, (), ())
    if record.format != chain.FORMAT:
        raise UnknownFactError(f"an entry of format {record.format}", header)
    try:
        consumed, facts = decode_body(body)
    except UnknownFactError as error:
        raise UnknownFactError(error.what, header) from None
    first = facts[0].fact if facts else None
    if isinstance(first, TermOpened) and first.fold_version > FOLD_VERSION:
        raise UnknownFactError(f"a term of fold version {first.fold_version}", header)
    return Entry(offset, cell, term, prev, digest, at_ms, consumed, facts)


def decode_body(stored: bytes) -> tuple[tuple[Position, ...], tuple[Recorded, ...]]:
    """Positions and facts; raises CodecError or UnknownFactError."""
    body = _parse(_BODY, stored)
    decoders = _FACT_DECODERS
    which = _FACT.WhichOneof  # A message looks for a field of that name first.
    position = _DECODERS[Position]
    return (
        tuple([position(message) for message in body.consumed]),
        tuple([decoders[which(fact, "kind")](fact) for fact in body.facts]),
    )


def unreadable(offset: int) -> Entry:
    """Stands for a stored record that cannot be decoded: the fold counts it as void, whatever its head."""
    return Entry(offset, "", 0, b"", b"", 0, (), ())


# --- values that facts share with requests, reports and views


def decode_value(kind: type[V], message: Message) -> V:
    """A value of `kind` (JobSpec, Inventory, Reason ...) from its message; raises CodecError, UnknownFactError."""
    stored = message.SerializeToString()
    value = _INTERNED[kind][stored] if kind in _INTERNED else _decode_stored(kind, stored)
    assert isinstance(value, kind)
    return value


def encode_value(value: msgspec.Struct) -> dict[str, Any]:
    """Keyword arguments of the message of that value: `common_pb2.JobSpec(**encode_value(spec))`."""
    fields: dict[str, Any] = _ENCODERS[type(value)](value)
    return fields


def decode_enum(kind: type[E], number: int) -> E:
    """The member with the wire's number; raises CodecError for none, UnknownFactError for a later one."""
    member = _MEMBERS[kind][number]
    assert isinstance(member, kind)
    return member


# --- derivation: from a struct and its message to two expressions


_M = TypeVar("_M", bound=Message)
_Convert = Callable[[Any], Any]
_SCALARS: Final = {
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_BYTES: bytes,
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_INT32: int,
    FieldDescriptor.TYPE_INT64: int,
    FieldDescriptor.TYPE_UINT32: int,
    FieldDescriptor.TYPE_UINT64: int,
}
_PACKAGE: Final = "tidemill.v1"
_MESSAGES: Final[dict[type, type[Message]]] = {}
_DECODERS: Final[dict[type, _Convert]] = {}
_ENCODERS: Final[dict[type, _Convert]] = {}
# Expressions that decode a struct from the message named {0}; where they are written out, a call is saved.
_INLINE: Final[dict[type, str]] = {}
_MEMBERS: Final[dict[type, dict[int, StrEnum]]] = {}
_NUMBERS: Final[dict[type, dict[StrEnum, int]]] = {}
# Thousands of facts share one of these: equal bytes are decoded once, to one object, which saves time and memory.
_SHARED: Final = (Grant, JobSpec, Reason, ResumePoint, Role)
_SHARED_MAX: Final = 4096
# What the compiled expressions see: decode_X, encode_X, interned_X, members_X, numbers_X by the name of a type.
_NAMES: Final[dict[str, Any]] = {"Recorded": Recorded}


class _Members(dict[int, StrEnum]):
    """Members by number; a number that is not there says what its absence means."""

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__(enumerate(kind, start=1))
        self._kind = kind

    def __missing__(self, number: int) -> StrEnum:
        if number == 0:
            raise CodecError(f"no {self._kind.__name__} is given")
        raise UnknownFactError(f"{self._kind.__name__} number {number}")


class _Interned(dict[bytes, Any]):
    """Values of a kind by the bytes they are stored as; too many of them, and it begins again."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        super().__init__()
        self._kind = kind

    def __missing__(self, stored: bytes) -> Any:
        if len(self) >= _SHARED_MAX:
            self.clear()
        value = self[stored] = _decode_stored(self._kind, stored)
        return value


_INTERNED: Final[dict[type, _Interned]] = {kind: _Interned(kind) for kind in _SHARED}


class _Decoders(dict[str | None, _Convert]):
    """Decoders by the name in the oneof; a fact of a newer version has none."""

    def __missing__(self, kind: str | None) -> _Convert:
        raise UnknownFactError("a kind of fact")


def _parse(kind: type[_M], stored: bytes) -> _M:
    try:
        return kind.FromString(stored)
    except DecodeError as error:
        raise CodecError(f"not a {kind.DESCRIPTOR.name}: {error}") from error


def _decode_stored(kind: type[msgspec.Struct], stored: bytes) -> Any:
    return _DECODERS[kind](_parse(_MESSAGES[kind], stored))


def _stored_messages() -> DescriptorPool:
    """Our messages as they are read: a shared value is bytes, by which it is found without being parsed.

    To the wire a message inside another is bytes too; equal bytes give equal values either way. A descriptor is
    edited as it is stored, since descriptor_pb2 would cost every process four MiB: in a FieldDescriptorProto,
    type = MESSAGE and type_name become type = BYTES and a field that nobody knows. `_item` checks that it came true.
    """
    pool = DescriptorPool()
    for module in (common_pb2, facts_pb2, log_pb2):
        file = module.DESCRIPTOR.serialized_pb
        for kind in _SHARED:
            name = f".{_PACKAGE}.{kind.__name__}".encode()
            name = bytes([len(name)]) + name
            file = file.replace(b"\x28\x0b\x32" + name, b"\x28\x0c\x7a" + name)
        pool.AddSerializedFile(file)
    return pool


def _message(name: str) -> type[Message]:
    """The class that reads the stored message of that name."""
    return GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def _compile(expression: str) -> _Convert:
    convert: _Convert = eval(expression, _NAMES)  # noqa: S307 - written below from our own field names
    return convert


def _derive(struct: type[msgspec.Struct], message: str) -> str:
    """Make both directions of a struct, and of what it holds, once; answers the name they are known by."""
    name = struct.__name__
    if struct in _DECODERS:
        return name
    _MESSAGES[struct] = _message(message)
    hints = typing.get_type_hints(struct)
    fields: Mapping[str, Any] = _MESSAGES[struct].DESCRIPTOR.fields_by_name
    if set(struct.__struct_fields__) != set(fields):
        odd = sorted(set(struct.__struct_fields__) ^ set(fields))
        raise TypeError(f"{name} and {message} do not have the same fields: {odd}")
    pairs = [(field, *_field(hints[field], fields[field])) for field in struct.__struct_fields__]
    _NAMES[name] = struct
    decode = ", ".join(decode.format(f"{{0}}.{field}") for field, decode, _ in pairs)
    encode = ", ".join(f"{field!r}: " + encode.format(f"v.{field}") for field, _, encode in pairs)
    _INLINE[struct] = f"{name}({decode})"
    _DECODERS[struct] = _NAMES[f"decode_{name}"] = _compile(
        f"lambda m: {_INLINE[struct].format('m')}"
    )
    _ENCODERS[struct] = _NAMES[f"encode_{name}"] = _compile(f"lambda v: {{{encode}}}")
    return name


def _field(hint: Any, field: FieldDescriptor) -> tuple[str, str]:
    """The expressions that decode and encode one field, with {} in place of it."""
    if not field.is_repeated:
        decode, encode = _item(hint, field)
        return decode, encode
    (item, _) = typing.get_args(hint)
    if item == tuple[str, str]:  # GetOptions would tell a map from a list, for ten MiB of memory.
        entry = field.message_type
        _expect(
            field, entry is not None and [each.name for each in entry.fields] == ["key", "value"]
        )
        return "tuple(sorted({}.items()))", "dict({})"
    decode, encode = _item(item, field)
    if decode == encode:
        return "tuple({}[:])", "{}"
    decode = decode if item in _INTERNED else _INLINE.get(item, decode)
    # A slice of a repeated field is a list, which is quicker to go through.
    return (
        f"tuple([{decode.format('i')} for i in {{}}[:]])",
        f"[{encode.format('i')} for i in {{}}]",
    )


def _item(hint: Any, field: FieldDescriptor) -> tuple[str, str]:
    kind = getattr(hint, "__supertype__", hint)  # A NewType is its base on the wire.
    if kind in _INTERNED:
        _expect(field, field.type == FieldDescriptor.TYPE_BYTES)
        name = _derive(kind, kind.__name__)
        _NAMES[f"interned_{name}"] = _INTERNED[kind]
        return f"interned_{name}[{{}}]", f"encode_{name}({{}})"
    if field.message_type is not None:
        name = _derive(kind, field.message_type.name)
        return f"decode_{name}({{}})", f"encode_{name}({{}})"
    if field.enum_type is not None:
        name = _derive_enum(kind, field.enum_type)
        return f"members_{name}[{{}}]", f"numbers_{name}[{{}}]"
    _expect(field, kind is _SCALARS[field.type])
    return "{}", "{}"


def _derive_enum(kind: type[StrEnum], enum: EnumDescriptor) -> str:
    name = kind.__name__
    if kind in _MEMBERS:
        return name
    prefix = "".join(f"_{c}" if c.isupper() else c.upper() for c in enum.name)[1:]
    ours = {f"{prefix}_{member.name}": number for number, member in enumerate(kind, start=1)}
    theirs = {value.name: value.number for value in enum.values}
    if {f"{prefix}_UNSPECIFIED": 0, **ours} != theirs:
        raise TypeError(
            f"{name} and {enum.full_name} do not have the same members in the same order"
        )
    _MEMBERS[kind] = _NAMES[f"members_{name}"] = _Members(kind)
    _NUMBERS[kind] = _NAMES[f"numbers_{name}"] = {m: n for n, m in enumerate(kind, start=1)}
    return name


def _expect(field: FieldDescriptor, fits: bool) -> None:  # noqa: FBT001 - the condition itself
    if not fits:
        raise TypeError(f"{field.full_name}: the struct's field has another type")


def _derive_facts() -> tuple[dict[str | None, _Convert], dict[type, _Convert]]:
    """Both directions of every fact, together with who asked for it."""
    structs = {struct.__name__: struct for struct in typing.get_args(Fact)}
    kinds = _FACT.DESCRIPTOR.oneofs_by_name["kind"].fields
    messages = {kind.message_type.name: kind for kind in kinds if kind.message_type is not None}
    if structs.keys() != messages.keys():
        odd = sorted(structs.keys() ^ messages.keys())
        raise TypeError(f"facts without a struct or without a message: {odd}")
    decoders, encoders = _Decoders(), {}
    for name, kind in messages.items():
        struct = structs[name]
        _derive(struct, name)
        fact = _INLINE[struct].replace("{0}", f"(m := f.{kind.name})", 1).format("m")
        decoders[kind.name] = _compile(f"lambda f: Recorded({fact}, f.by, f.input)")
        encoders[struct] = _compile(
            f"lambda r: {{'by': r.by, 'input': r.input, {kind.name!r}: encode_{name}(r.fact)}}"
        )
    return decoders, encoders


_POOL: Final = _stored_messages()
_BODY: Final[Any] = _message("Body")
_FACT: Final[Any] = _message("Fact")
_derive(Position, "Position")
_FACT_DECODERS, _FACT_ENCODERS = _derive_facts()
