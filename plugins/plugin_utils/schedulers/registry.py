# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the backends that offer GPUs to a scheduler.

A new backend needs a folder and a line here.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from .protocol import Backend, ClusterBackend

# Each Kubernetes backend's class by key. Messages and `choices` list the keys in this order.
_CLUSTER_CLASSES = {
    "nvidia_device_plugin": "DevicePlugin",
    "nvidia_dra": "Dra",
    "hami": "Hami",
    "volcano_vgpu": "VolcanoVgpu",
    "openfleet_dra": "OpenfleetDra",
    "openfleet_device_plugin": "OpenfleetDevicePlugin",
}
# Every other backend's class by key.
_OTHER_CLASSES = {"slurm": "Slurm"}
#: Values of `gpu_kubernetes_backend`, and the keys of all backends.
KEYS = tuple(_CLUSTER_CLASSES)
ALL_KEYS = (*KEYS, *_OTHER_CLASSES)


def backend(key: str) -> ClusterBackend:
    """Return the backend for Kubernetes with this key.

    Raises KeyError if the key is unknown.
    """
    return cast(ClusterBackend, _new(key, _CLUSTER_CLASSES[key]))


def any_backend(key: str) -> Backend:
    """Return the backend of any scheduler with this key.

    Raises KeyError if the key is unknown.
    """
    return _new(key, {**_CLUSTER_CLASSES, **_OTHER_CLASSES}[key])


def _new(key: str, name: str) -> Backend:
    return cast(Backend, getattr(import_module(".%s.backend" % key, __package__), name)())
