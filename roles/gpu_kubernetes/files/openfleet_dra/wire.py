# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Encode and decode messages of the kubelet in the wire format of protobuf.

Only the types that the kubelet's API needs: text, true or false, messages, lists, and maps from text to messages.
https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, Mapping, NamedTuple, Tuple, Union

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: A message's maximum size in bytes, and how deeply messages may contain messages.
_MOST_BYTES, _MOST_DEPTH = 4 << 20, 8


class WireError(ValueError):
    """The bytes are not a message."""


class Field(NamedTuple):
    """A message's field.

    `kind` is "text", "flag" or a message's definition. A list has `many`, and a map from text to messages has `keyed`.
    """

    name: str
    kind: Union[str, Mapping[int, Any]]
    many: bool = False
    keyed: bool = False


#: A message's fields by number.
Definition = Mapping[int, Field]


def encode(definition: Definition, values: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message.

    Leave out fields without a value.
    """
    parts = []
    for number, field in definition.items():
        value = values.get(field.name)
        if not value:
            continue
        if field.keyed:
            entry = {1: Field("key", "text"), 2: Field("value", field.kind)}
            rows = [{"key": key, "value": each} for key, each in value.items()]
            # A map is a list of messages with key and value. An empty value still has its field.
            parts += [_bytes(number, encode(entry, row) + (b"" if row["value"] else _bytes(2, b""))) for row in rows]
        else:
            parts += [_one(number, field, each) for each in (value if field.many else [value])]
    return b"".join(parts)


def decode(definition: Definition, data: bytes, depth: int = 0) -> Dict[str, Any]:
    """Return the fields of a message.

    Ignore unknown fields. Raise WireError if the bytes are not a message.
    """
    if len(data) > _MOST_BYTES or depth > _MOST_DEPTH:
        raise WireError("the message is too large")
    values: Dict[str, Any] = {field.name: _empty(field) for field in definition.values()}
    for number, content in _fields(data):
        field = definition.get(number)
        if field is None:
            continue
        if field.keyed:
            entry = decode({1: Field("key", "text"), 2: Field("value", field.kind)}, _checked(content), depth + 1)
            values[field.name][entry["key"]] = entry["value"]
            continue
        value = _value(field, content, depth)
        if field.many:
            values[field.name].append(value)
        else:
            values[field.name] = value
    return values


def _empty(field: Field) -> Any:
    if field.keyed:
        return {}
    if field.many:
        return []
    return {"text": "", "flag": False}[field.kind] if isinstance(field.kind, str) else {}


def _one(number: int, field: Field, value: Any) -> bytes:
    if field.kind == "flag":
        return _varint(number << 3 | _VARINT) + _varint(int(bool(value)))
    content = str(value).encode() if isinstance(field.kind, str) else encode(field.kind, value)
    return _bytes(number, content)


def _value(field: Field, content: Union[int, bytes], depth: int) -> Any:
    if field.kind == "flag":
        if not isinstance(content, int):
            raise WireError("%s is not a number" % field.name)
        return bool(content)
    data = _checked(content)
    if isinstance(field.kind, str):
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise WireError("%s is not text" % field.name) from None
    return decode(field.kind, data, depth + 1)


def _checked(content: Union[int, bytes]) -> bytes:
    if not isinstance(content, bytes):
        raise WireError("a field has the wrong type")
    return content


def _bytes(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _fields(data: bytes) -> Iterator[Tuple[int, Union[int, bytes]]]:
    """Yield each field's number and content."""
    place = 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, place = _read_varint(data, place)
            yield number, value
            continue
        if kind == _BYTES:
            length, place = _read_varint(data, place)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise WireError("unknown type %d" % kind)
        if number == 0 or place + length > len(data):
            raise WireError("the message is incomplete")
        yield number, data[place : place + length]
        place += length


def _read_varint(data: bytes, place: int) -> Tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise WireError("the message is incomplete")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise WireError("a number is too long")
