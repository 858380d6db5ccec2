# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the backends that offer GPUs to a scheduler.

To add a backend, add its folder and a line here.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from .protocol import Backend

# The class of each backend by key. Messages and `choices` list the keys in this order.
_CLASSES = {
    "nvidia_device_plugin": "DevicePlugin",
    "nvidia_dra": "Dra",
    "hami": "Hami",
    "volcano_vgpu": "VolcanoVgpu",
}
KEYS = tuple(_CLASSES)


def backend(key: str) -> Backend:
    """Return the backend with this key. Raises KeyError if the key is unknown."""
    name = _CLASSES[key]
    return cast(Backend, getattr(import_module(".%s.backend" % key, __package__), name)())
