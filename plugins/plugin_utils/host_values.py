# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check values that a managed host sends before the controller uses them. Pure.

A compromised host can send any data instead of a module's result. So names must match patterns, numbers must be within
bounds, texts are made printable, and long texts and lists are shortened. A host can then neither control the controller
nor fill its memory. docs/security-host-values.md lists how each value is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..module_utils.errors import FleetError
from ..module_utils.foreign_text import MOST_TEXT, one_line, text

# These names are exported again, because texts from API servers are checked like texts from hosts.
__all__ = ["MOST_TEXT", "text"]

#: Maximum number of characters of a value in a message.
_SHOWN = 80
#: Maximum number of characters in a message's value.
MOST_ENTRIES, MOST_ENTRIES_OF_HOST = 200, 5000
#: Maximum number of entries in a list of holders or processes, and in all such lists of a host.
_LARGEST, _LARGEST_SMALL = 1 << 60, 1 << 14

#: Regular expression and description for each kind of name.
_PATTERNS = {
    "architecture": (r"x86_64|aarch64", "x86_64 or aarch64"),
    # The format of NVML. It includes the UUIDs of MIG devices before driver 470, which contain slashes:
    # https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
    "gpu_uuid": (r"GPU-[0-9A-Za-z][0-9A-Za-z-]{0,63}", "the UUID of a GPU as NVML writes it"),
    "mig_uuid": (r"MIG-[0-9A-Za-z][0-9A-Za-z/-]{0,95}", "the UUID of a MIG device as NVML writes it"),
    # The format of sysfs: domain:bus:device.function.
    "pci_address": (
        r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]",
        "a PCI address such as 0000:3b:00.0",
    ),
    "pci_device": (r"[0-9a-f]{4}", "a PCI device id of four hexadecimal digits"),
    "model": (r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9 ()/+._-]{0,95}", "the name of a GPU model"),
    "profile": (
        r"[1-9][0-9]?g\.[1-9][0-9]{0,3}gb(?:[+-][a-z]{1,8}(?:\.all)?)?",
        "a profile of GPU instances such as 1g.10gb",
    ),
    "version": (r"[0-9A-Za-z][0-9A-Za-z.+~:_-]{0,63}", "a version"),
    # The names of units are described in systemd.unit(5).
    "unit": (
        r"[A-Za-z0-9:_.\\@-]{1,244}\.(?:service|socket|timer|path|scope|slice)",
        "the full name of a systemd unit",
    ),
    "container": (r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", "the name or id of a container"),
    # A UUID, or the hash of a static pod's manifest (kubernetes/kubernetes, pkg/kubelet/config).
    "pod_uid": (r"[0-9a-f][0-9a-f-]{15,63}", "the UID of a pod"),
    # Names of MPS daemons, tenants and kinds of holders (docs/gpu_layout.md).
    "name": (r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", "a name of letters, digits, _, . and -"),
}
_NUMBERS = {
    "small": (int, 0, _LARGEST_SMALL, "a whole number from 0 to %d" % _LARGEST_SMALL),
    "count": (int, 0, _LARGEST, "a whole number of 0 or more"),
    "number": ((int, float), -_LARGEST, _LARGEST, "a number"),
}
KINDS = (*_PATTERNS, *_NUMBERS, "flag", "text", "line")


class HostValueError(FleetError):
    """A host sent an invalid value.

    `where` names the host, and the value's place in the result.
    """

    def __init__(self, host: str, place: str, value: Any, words: str) -> None:
        super().__init__(
            "%s: %s" % (host, place),
            "the host sent %s, which is not %s" % (shown(value), words),
            "Find out who changed the programs that root runs on this host.",
        )


def checked(host: str, place: str, kind: str, value: Any) -> Any:
    """Return the value as a plain Python object.

    Raises HostValueError if it is not of this `kind` (one of KINDS).
    """
    if kind == "text":
        return text(value)
    if kind == "line":
        return one_line(value)
    if kind in _PATTERNS:
        pattern, words = _PATTERNS[kind]
        # Check the length first: no pattern matches longer values, and matching megabytes takes time.
        if isinstance(value, str) and len(value) <= 256 and re.fullmatch(pattern, value, re.ASCII):
            return "".join(value)
    elif kind == "flag":
        words = "true or false"
        if isinstance(value, bool):
            return value
    else:
        wanted, least, most, words = _NUMBERS[kind]
        # NaN is not within any bounds.
        if isinstance(value, wanted) and not isinstance(value, bool) and least <= value <= most:
            return value
    raise HostValueError(host, place, value, words)


def is_a(kind: str, value: Any) -> bool:
    """Return whether the value is one of this kind."""
    try:
        checked("", "", kind, value)
    except HostValueError:
        return False
    return True


def without_host(host: str, message: str) -> str:
    """Return the message without the host's name at its start."""
    return message[len(host) + 2 :] if message.startswith(host + ": ") else message


def shown(value: Any) -> str:
    """Return the value quoted, printable and shortened, for error messages."""
    return '"%s"' % text(value, _SHOWN)


class Reader:
    """Reads a result from a host according to a shape.

    A shape is one of these:
    - a kind. If it ends in ``?``, the value may be null.
    - a mapping from keys to shapes. If a key ends in ``!``, its value is required and must not be null.
      Other values may be missing or null. Keys that are not in the mapping are dropped.
    - ``[shape]`` for a list that may be shortened.
    - ``[shape, most]`` for a list that must not have more than `most` entries.
    """

    def __init__(self, host: str, entries: int = MOST_ENTRIES_OF_HOST) -> None:
        self.host, self._entries_left = host, entries

    def read(self, place: str, value: Any, shape: Any) -> Any:
        """Return a plain copy of the value.

        Raises HostValueError if it does not have the shape.
        """
        if isinstance(shape, str):
            return (
                None if value is None and shape.endswith("?") else checked(self.host, place, shape.rstrip("?"), value)
            )
        if isinstance(shape, list):
            return self._list(place, value, *shape)
        return self._mapping(place, value, shape)

    def _list(self, place: str, value: Any, shape: Any, most: int | None = None) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise HostValueError(self.host, place, value, "a list")
        if most is not None and len(value) > most:
            raise HostValueError(self.host, place, "a list of %d" % len(value), "one of at most %d" % most)
        if most is None:
            most = min(MOST_ENTRIES, self._entries_left)
            self._entries_left -= min(most, len(value))
        return [self.read("%s[%d]" % (place, number), item, shape) for number, item in enumerate(value[:most])]

    def _mapping(self, place: str, value: Any, shape: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise HostValueError(self.host, place, value, "a mapping")
        checked_values = {}
        for key, inner in shape.items():
            name = key.rstrip("!")
            given = value.get(name)
            if given is not None or key != name:
                checked_values[name] = self.read("%s.%s" % (place, name) if place else name, given, inner)
            elif name in value:
                checked_values[name] = None
        return checked_values


def bounded(value: Any, entries: int = MOST_ENTRIES_OF_HOST) -> Any:
    """Return a plain copy of any value, with a limited number of entries.

    Texts are made printable and shortened. `entries` is the maximum total number of entries.
    """
    return _Bounded(entries).copy(value, 16)


class _Bounded:
    def __init__(self, entries: int) -> None:
        self._left = entries

    def copy(self, value: Any, depth: int) -> Any:
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, (int, float)):
            return value if -_LARGEST <= value <= _LARGEST else text(value)
        if depth and isinstance(value, Mapping):
            pairs = list(value.items())[: self._take(len(value))]
            return {text(key): self.copy(item, depth - 1) for key, item in pairs}
        if depth and isinstance(value, (list, tuple)):
            taken = self._take(len(value))
            more = ["and %d more" % (len(value) - taken)] if taken < len(value) else []
            return [*(self.copy(item, depth - 1) for item in value[:taken]), *more]
        return text(value)

    def _take(self, wanted: int) -> int:
        taken = min(wanted, self._left)
        self._left -= taken
        return taken
