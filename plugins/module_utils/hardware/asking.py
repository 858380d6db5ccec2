# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make one NVML call and record its result or failure.

A reading has one of these forms:

* ``{"call", "of", "value"}``
* ``{"call", "of", "error", "code"}`` if NVML returned an error code
* ``{"call", "of", "missing"}`` if the call could not be made
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable

from ..vendors.nvidia.nvml.session import Session
from . import getters

Reading = dict
#: Length of the buffers for lists that NVML fills.
_LIST_LENGTH = 64


class Asking(Session):
    """An NVML session that turns calls into readings."""

    def _reading(self, getter: getters.Getter, *handle: Any) -> Reading:
        return self._custom(
            getter.call, getter.of, lambda: getattr(self._nvml, getter.call)(*handle, *getter.arguments)
        )

    def _custom(self, call: str, of: str, ask: Callable[[], Any]) -> Reading:
        """Return the reading of one call, including errors."""
        reading: Reading = {"call": call, "of": of}
        if not hasattr(self._nvml, call):
            return dict(reading, missing="this pynvml has no such function")
        try:
            return dict(reading, value=plain(ask()))
        except self._nvml.NVMLError as error:
            return dict(reading, error=type(error).__name__.replace("NVMLError_", ""), code=error.value)
        except UnicodeDecodeError:
            return dict(reading, missing="the answer is not UTF-8 text")
        except (AttributeError, TypeError, ctypes.ArgumentError) as error:
            # The installed pynvml defines this call with other arguments.
            return dict(reading, missing="this pynvml cannot make the call: %s" % error)

    def _index(self, handle: Any) -> int:
        return int(self._nvml.nvmlDeviceGetIndex(handle))

    def _listed(self, item: Any, call: str, owner: Any, number: int, keep: bool = False) -> list[Any]:
        """Return the items from a call that fills a list.

        Raises pynvml's errors, so that the caller records their codes.
        """
        buffer, count = (item * _LIST_LENGTH)(), ctypes.c_uint(_LIST_LENGTH)
        getattr(self._nvml, call)(owner, number, buffer, ctypes.byref(count))
        items = [buffer[place] for place in range(count.value)]
        return items if keep else [plain(item) for item in items]


def plain(value: Any) -> Any:
    """Convert a pynvml value to JSON data."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, ctypes.Structure):
        names = [field[0] for field in value._fields_]
        return {name: plain(getattr(value, name)) for name in names if name != "version"}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (ctypes.Array, list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, ctypes._SimpleCData):
        return plain(value.value)
    # A handle or pointer has no meaning outside this process.
    return None
