"""What crosses a link between two parties: one Frame at a time, and nothing else.

    Frame    number  counts on this link from 1; 0: never repeated (hello, refusal, bare ack)
             ack     all frames up to this number have been taken in
             pair    says between which two processes: what an older run sent is refused
             one of  hello, refusal, part, control
    Hello    first in both directions; whatever differs and should not is a reason to refuse
    Part     a piece of one message: its key, its whole size and digest; some of its bytes follow
    Control  how the parties agree when to start, to go back and to end: a word and JSON

On the wire: the frame's length (u32), the frame, and behind it the raw bytes of a part, which so
are copied once. A closed protobuf schema in which no field names a class; it is written down here
and not in generated code, which would fit one version of protobuf only.
"""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from colonnade.errors import CodecError

PROTOCOL = 1
PART_BYTES = 1 << 20
HEAD_BYTES = 1 << 20  # hellos and accounts are JSON
FRAME_BYTES = PART_BYTES + HEAD_BYTES
_LENGTH = struct.Struct("<I")

SCHEMA: dict[str, list[str]] = {  # a field's number is its place; it never changes
    "Hello": [
        "uint32 protocol",
        "string party",
        "bytes incarnation",  # of this process: another one means that its memory is gone
        "bytes expects",  # the peer's incarnation as last seen, or empty
        "uint64 received",  # frames taken in from that incarnation
        "string agreed",  # JSON: what must be equal at all parties, by name
        "double clock",  # seconds since 1970
    ],
    "Refusal": ["repeated string reasons"],
    "Part": [
        "fixed64 run",
        "uint32 attempt",
        "string sender",
        "string receiver",
        "string kind",
        "uint64 sequence",  # within (sender, receiver, Kind) of this attempt
        "string phase",
        "uint32 epoch",
        "uint64 step",
        "uint64 hop",
        "uint64 size",  # of the whole message
        "bytes sha256",  # of the whole message
        "uint64 offset",  # of the bytes that follow the frame
    ],
    "Control": ["string word", "string content"],
    "Frame": [
        "uint64 number",
        "uint64 ack",
        "fixed64 pair",  # of which two incarnations: a frame of an older run or process is refused
        "Hello hello",
        "Refusal refusal",
        "Part part",
        "Control control",
    ],
}


def _compiled() -> Any:
    """The message classes of SCHEMA."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="colonnade/frame.proto", package="colonnade", syntax="proto3"
    )
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for number, text in enumerate(fields, start=1):
            *repeated, kind, field = text.split()
            added = message.field.add(name=field, number=number)
            added.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            if kind in SCHEMA:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".colonnade.{kind}"
                if not message.oneof_decl:
                    message.oneof_decl.add(name="body")
                added.oneof_index = 0
            else:
                added.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"colonnade.{name}"))
        for name in SCHEMA
    }


_classes = _compiled()
Hello, Refusal, Part, Control, Frame = (_classes[name] for name in SCHEMA)


def pack(frame: Any, *tail: bytes | memoryview) -> bytes:
    """A frame and the bytes behind it, as one message of the stream."""
    head: bytes = frame.SerializeToString()
    return b"".join((_LENGTH.pack(len(head)), head, *tail))


def parse(data: bytes) -> tuple[Any, memoryview]:
    """A frame and the bytes behind it; anything else is refused."""
    if len(data) > FRAME_BYTES:
        raise CodecError(f"a frame of {len(data)} bytes; {FRAME_BYTES} at most")
    if len(data) < _LENGTH.size:
        raise CodecError(f"{len(data)} bytes are not a frame")
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + length
    if end > len(data) or length > HEAD_BYTES:
        raise CodecError(f"a frame whose head has {length} of {len(data)} bytes")
    try:
        frame = Frame.FromString(data[_LENGTH.size : end])
    except DecodeError as error:
        raise CodecError(f"bytes that are not a frame ({error})") from None
    return frame, memoryview(data)[end:]
