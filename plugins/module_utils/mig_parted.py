# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a configuration of nvidia-mig-parted to layouts, one for each of its labels. Pure: takes data, gives data.

What such a file can say: `version: v1` and `mig-configs`, for each label a list of elements with `devices` (all, or
indices), optionally `device-filter` (PCI ids, device before vendor: 0x233010DE), `mig-enabled`, and `mig-devices` (a
count for each profile). https://github.com/NVIDIA/mig-parted
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from .catalogue import Model
from .errors import FleetError
from .layout_reader import is_integer
from .profile_name import ProfileNameError, parse_profile_name

VERSION = "v1"
_VENDOR = "10de"
_KEYS = {"devices", "device-filter", "mig-enabled", "mig-devices"}


@dataclass(frozen=True)
class Converted:
    """A layout as data, and a sentence for each thing that it says otherwise than the configuration did."""

    layout: list[dict[str, Any]]
    problems: tuple[str, ...] = ()


def convert(data: Any, source: str, models: Mapping[str, Model]) -> dict[str, Converted]:
    """The layouts by label. `models` tell the names of the GPUs behind PCI ids.

    Raises FleetError, naming the place in `source`, for a file that is no configuration of mig-parted.
    """
    configs = data.get("mig-configs") if isinstance(data, Mapping) else None
    if not isinstance(configs, Mapping):
        raise FleetError(source, "it has no mig-configs", "Name a configuration of nvidia-mig-parted.")
    if data.get("version") != VERSION:
        problem = "its version is %s, and %s is known" % (data.get("version"), VERSION)
        raise FleetError("%s: version" % source, problem, "Write version: %s if that is what it is." % VERSION)
    boards = {board.pci_device_id: board.name for model in models.values() for board in model.boards}
    return {
        str(label): _Config("%s: mig-configs.%s" % (source, label), boards).read(config)
        for label, config in configs.items()
    }


class _Config:
    """Reads the configuration of one label."""

    def __init__(self, where: str, boards: Mapping[str, str]) -> None:
        self._where, self._boards = where, boards
        self._problems: list[str] = []

    def read(self, config: Any) -> Converted:
        if not isinstance(config, list):
            raise self._no("", "a list of elements", config)
        layout = []
        for number, element in enumerate(config):
            place = "[%d]" % number
            if not isinstance(element, Mapping):
                raise self._no(place, "a mapping", element)
            for key in sorted(set(map(str, element)) - _KEYS):
                self._differs(place, "the key %s is not known, and left out" % key)
            gpus = self._gpus(place, element)
            if gpus:
                layout.append(dict({"gpus": gpus}, **self._sharing(place, element)))
        if len(layout) > 1 and any(entry["gpus"] == "all" for entry in layout):
            self._differs("", "all stands beside other GPUs, which a layout refuses: list the GPUs of each entry")
        models = [selector for entry in layout for selector in entry["gpus"] if isinstance(selector, dict)]
        if len(models) > 1:
            self._differs(
                "", "it serves several models, and a host's layout names only GPUs that it has: keep those on each host"
            )
        return Converted(layout, tuple(self._problems))

    def _gpus(self, place: str, element: Mapping[str, Any]) -> Any:
        """The selectors of an element; an empty list where none can say what it says."""
        devices = element.get("devices")
        ids = element.get("device-filter")
        names = self._names(place, ids) if ids not in (None, "", []) else None
        if devices == "all":
            return "all" if names is None else [{"model": name} for name in names]
        if not isinstance(devices, list) or not all(is_integer(index) and index >= 0 for index in devices):
            raise self._no(place + ".devices", "all or a list of indices", devices)
        if names is not None:
            self._differs(place, "a layout names GPUs by index or by model, not by both: device-filter is left out")
        return list(devices)

    def _names(self, place: str, ids: Any) -> list[str]:
        """The names, without NVIDIA, of the boards that the filter lets through."""
        names = []
        for text in ids if isinstance(ids, list) else [ids]:
            # YAML reads a bare 0x233010DE as a number.
            number = "%08x" % text if is_integer(text) else str(text).lower().replace("0x", "", 1)
            name = self._boards.get(number[:4]) if number[4:] == _VENDOR else None
            if name is None:
                self._differs(place, "the catalogue has no GPU with the PCI id %s, which is left out" % text)
            else:
                names.append(name.replace("NVIDIA ", "", 1))
        return names

    def _sharing(self, place: str, element: Mapping[str, Any]) -> dict[str, Any]:
        enabled = element.get("mig-enabled")
        if not isinstance(enabled, bool):
            raise self._no(place + ".mig-enabled", "true or false", enabled)
        devices = element.get("mig-devices") or {}
        if not isinstance(devices, Mapping):
            raise self._no(place + ".mig-devices", "a mapping of profiles to counts", devices)
        if not enabled:
            return {"sharing": "shared"}
        return {"sharing": "mig", "mig": [i for i in (self._instance(place, *item) for item in devices.items()) if i]}

    def _instance(self, place: str, name: Any, count: Any) -> dict[str, Any] | None:
        if not is_integer(count) or count < 0:
            raise self._no("%s.mig-devices.%s" % (place, name), "a count", count)
        try:
            profile = parse_profile_name(str(name))
        except ProfileNameError as error:
            self._differs(place, "%s, and is left out" % error.problem)
            return None
        if profile.is_split:
            self._differs(
                place,
                "%s is a part of a %s: say with compute_instances which parts share one; left out"
                % (name, profile.gpu_instance),
            )
            return None
        if count == 0:
            return None
        return {"profile": str(name)} if count == 1 else {"profile": str(name), "count": count}

    def _differs(self, place: str, what: str) -> None:
        self._problems.append("%s%s: %s" % (self._where, place, what))

    def _no(self, place: str, wanted: str, value: Any) -> FleetError:
        return FleetError(self._where + place, "expected %s, got %r" % (wanted, value), "Mend it there.")
