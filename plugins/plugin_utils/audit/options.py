# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the settings of an audit: addresses, times and thresholds."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Collection, Mapping, Sequence

from ...module_utils.errors import FleetError
from ..idle.holidays import spans
from ..idle.rhythm import Span
from .holdings import Price
from .prometheus import Access
from .verdict import Thresholds

#: Minimum values of thresholds. Signs of work are read by the hour, so shorter pauses cannot be measured.
_LEAST = {"idle_hours": 1.0}

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


class OptionError(FleetError):
    """An option is invalid."""


def seconds(text: str) -> float:
    """Return the seconds of a duration like ``14d`` or ``90m``. Raises OptionError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([mhdw])\s*", text)
    if not match or float(match.group(1)) == 0:
        raise OptionError("window", "%r is not a duration" % text, "Write a number and m, h, d or w, for example 14d.")
    return float(match.group(1)) * _UNITS[match.group(2)]


def access(given: Mapping[str, Any]) -> Access | None:
    """Return the settings for access to the server, or None without `url`.

    Raises OptionError.
    """
    known_keys("prometheus", given, {field.name for field in dataclasses.fields(Access)})
    if not given.get("url"):
        return None
    values = {name: value for name, value in given.items() if value is not None}
    for name in ("url", "user", "password", "token", "ca_file"):
        if name in values:
            values[name] = _one_line("prometheus.%s" % name, values[name])
    if "token" in values:
        _ascii("prometheus.token", values["token"])
    if "headers" in values:
        values["headers"] = _headers(values["headers"])
    if "timeout_seconds" in values:
        values["timeout_seconds"] = _number("prometheus.timeout_seconds", values["timeout_seconds"], above=0)
    if "verify" in values and not isinstance(values["verify"], bool):
        raise OptionError(
            "prometheus.verify", "%r is neither true nor false" % (values["verify"],), "Write true or false."
        )
    return Access(**values)


def prices(rows: Sequence[Mapping[str, Any]]) -> list[Price]:
    """Return the price table. Raises OptionError."""
    found = []
    for number, row in enumerate(rows):
        where = "prices[%d]" % number
        if not isinstance(row, Mapping) or not {"model", "price"} <= set(row):
            raise OptionError(where, "model or price is missing", 'Write it as {model: "H100*", price: 2.5}.')
        found.append(Price(str(row["model"]), _number("%s.price" % where, row["price"])))
    return found


def thresholds(given: Mapping[str, Any]) -> Thresholds:
    """Return the default thresholds with the inventory's changes applied.

    Raises OptionError.
    """
    known_keys("thresholds", given, {field.name for field in dataclasses.fields(Thresholds)})
    values = {}
    for name, value in given.items():
        number = _number("thresholds.%s" % name, value)
        if name.endswith("_ratio") and number > 1:
            raise OptionError(
                "thresholds.%s" % name, "%g is above 1" % number, "Ratios are from 0 to 1: 0.5 is a half."
            )
        if number < _LEAST.get(name, 0.0):
            raise OptionError(
                "thresholds.%s" % name,
                "%g is less than %g: signs of work are known by the hour" % (number, _LEAST[name]),
                "Write %g or more." % _LEAST[name],
            )
        values[name] = number
    return Thresholds(**values)


def holidays(given: Mapping[str, Any]) -> tuple[Span, ...]:
    """Return the holidays as spans in seconds since the epoch.

    Raises OptionError and HolidayError.
    """
    known_keys("holidays", given, {"days", "time_zone"})
    days = given.get("days") or []
    if not isinstance(days, list):
        raise OptionError("holidays.days", "it is not a list", "Write it as [2026-12-25, 2027-01-01].")
    return spans(days, str(given.get("time_zone") or "UTC"))


def known_keys(where: str, given: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise OptionError for an unknown key."""
    for name in given:
        if name not in names:
            raise OptionError("%s.%s" % (where, name), "unknown key", "Known keys: %s." % ", ".join(sorted(names)))


def _one_line(where: str, value: Any) -> str:
    """Return the value as one line of text, without a final line break.

    Raises OptionError without the value, which may be secret.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise OptionError(where, "it is not text", "Write one line of text.")
    text = str(value).rstrip("\r\n")
    if any(ord(sign) < 32 or ord(sign) == 127 for sign in text):
        raise OptionError(where, "it contains a line break or another control character", "Write one line of text.")
    return text


def _ascii(where: str, text: str) -> str:
    """Return the text if an HTTP header may contain it. Raises OptionError."""
    if not text.isascii():
        raise OptionError(
            where, "it contains a character that HTTP headers cannot have", "Check whether it was copied completely."
        )
    return text


def _headers(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise OptionError("prometheus.headers", "it is not a mapping", "Write it as {X-Scope-OrgID: fleet}.")
    found = {}
    for name, value in given.items():
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", str(name)):
            raise OptionError("prometheus.headers", "a header has an invalid name", "Write it like X-Scope-OrgID.")
        where = "prometheus.headers.%s" % name
        found[str(name)] = _ascii(where, _one_line(where, value))
    return found


def _number(where: str, value: Any, above: float = -1.0) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    # `not number > above` is also true for NaN.
    if isinstance(value, bool) or not number > above or number < 0:
        raise OptionError(where, "%r is not a number above 0" % (value,), "Write a number.")
    return number
