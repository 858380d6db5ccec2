# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert a configuration of nvidia-mig-parted to layouts, one for each label.

All functions are pure.

The configuration has `version: v1` and `mig-configs`, which has a list for each label. An element of the list has these
keys:

* `devices`: "all", or a list of GPU indices
* `device-filter` (optional): PCI ids, device before vendor, such as 0x233010DE
* `mig-enabled`
* `mig-devices`: a count for each profile, also for compute instances such as 1c.3g.20gb

Source: https://github.com/NVIDIA/mig-parted, api/spec/v1
"""

from __future__ import annotations

import itertools
from collections import Counter
from fnmatch import fnmatchcase
from typing import Any, Iterable, Mapping, Sequence

from ...catalogue import Model
from ...errors import FleetError
from ...frozen import frozen
from ...layout.profile_name import ProfileName, ProfileNameError, parse_profile_name
from ...layout.reader import is_integer
from .form import KEY

VERSION = "v1"
_VENDOR = "10de"
_KEYS = {"devices", "device-filter", "mig-enabled", "mig-devices"}


@frozen
class Converted:
    """A layout as data, and a sentence for each part that it cannot express."""

    layout: list[dict[str, Any]]
    problems: tuple[str, ...] = ()


def convert(data: Any, source: str, models: Mapping[str, Model]) -> dict[str, Converted]:
    """Return a layout for each label.

    `models` is the catalogue, which maps PCI ids to GPU names. Raises FleetError with the position in `source` if the
    data is not a configuration of mig-parted.
    """
    configs = data.get("mig-configs") if isinstance(data, Mapping) else None
    if not isinstance(configs, Mapping):
        raise FleetError(source, "it has no mig-configs", "Give a configuration of nvidia-mig-parted.")
    if data.get("version") != VERSION:
        problem = "its version is %s, and only %s is supported" % (data.get("version"), VERSION)
        raise FleetError("%s: version" % source, problem, "Write version: %s if that is its version." % VERSION)
    boards = {board.pci_device_id: board.name for model in models.values() for board in model.boards}
    return {
        str(label): _Config("%s: mig-configs.%s" % (source, label), boards).read(config)
        for label, config in configs.items()
    }


@frozen
class _Gpus:
    """The indices and models of the GPUs that an element selects.

    A selected GPU has one of the indices and is one of the models. None means all indices or all models.
    """

    place: str
    indices: tuple[int, ...] | None
    models: tuple[str, ...] | None

    def share_a_model(self, other: _Gpus) -> bool:
        return self.models is None or other.models is None or bool(set(self.models) & set(other.models))

    def shared_indices(self, other: _Gpus) -> list[int]:
        return sorted(set(self.indices or ()) & set(other.indices or ()))


class _Config:
    """Reads the configuration for one label."""

    def __init__(self, where: str, boards: Mapping[str, str]) -> None:
        self._where, self._boards = where, boards
        self._problems: list[str] = []

    def read(self, config: Any) -> Converted:
        if not isinstance(config, list):
            raise self._no("", "a list of elements", config)
        layout, named, models = [], [], set()
        for number, element in enumerate(config):
            place = "[%d]" % number
            if not isinstance(element, Mapping):
                raise self._no(place, "a mapping", element)
            for key in sorted(set(map(str, element)) - _KEYS):
                self._differs(place, "the key %s is unknown and was left out" % key)
            gpus = self._gpus(place, element)
            selectors = self._selectors(gpus)
            if selectors:
                named.append(gpus)
                models.update(selector["model"] for selector in selectors if isinstance(selector, dict))
                layout.append(dict({"gpus": selectors}, **self._sharing(place, element)))
        self._check_together(named, len(models))
        return Converted(layout, tuple(self._problems))

    def _gpus(self, place: str, element: Mapping[str, Any]) -> _Gpus:
        devices, ids = element.get("devices"), element.get("device-filter")
        if devices != "all" and not (
            isinstance(devices, list) and all(is_integer(index) and index >= 0 for index in devices)
        ):
            raise self._no(place + ".devices", "all or a list of indices", devices)
        models = None
        if ids not in (None, "", []):
            # Several PCI ids may belong to one board.
            models = tuple(dict.fromkeys(map(self._model, ids if isinstance(ids, list) else [ids])))
        return _Gpus(place, None if devices == "all" else tuple(dict.fromkeys(devices)), models)

    def _model(self, pci_id: Any) -> str:
        """Return the name of the board with this PCI id, without "NVIDIA".

        Returns a text with the id if the catalogue does not have it.
        """
        # YAML parses an unquoted 0x233010DE as a number.
        number = "%08x" % pci_id if is_integer(pci_id) else str(pci_id).lower().replace("0x", "", 1)
        name = self._boards.get(number[:4]) if number[4:] == _VENDOR else None
        return "PCI id %s" % pci_id if name is None else name.replace("NVIDIA ", "", 1)

    def _selectors(self, gpus: _Gpus) -> Any:
        """Return the selectors of an element.

        Returns an empty list if no selector can express the element.
        """
        if gpus.indices is not None:
            if gpus.models is not None and gpus.indices:
                self._differs(
                    gpus.place,
                    "a layout selects GPUs by index or by model, not by both: device-filter is left out. Use it on hosts whose "
                    "%s %s" % (_numbers(gpus.indices), " or ".join(gpus.models)),
                )
            return list(gpus.indices)
        if gpus.models is None:
            return "all"
        names = {board.replace("NVIDIA ", "", 1) for board in self._boards.values()}
        for model in gpus.models:
            if model not in names:
                self._differs(gpus.place, "the catalogue has no GPU with the %s, which is left out" % model)
        known = [model for model in gpus.models if model in names]
        # Use one pattern for all variants of a board. Each selector of a layout must match a GPU, but a host has only one
        # of the variants.
        pattern = _pattern(known, names)
        return [{"model": pattern}] if pattern else [{"model": model} for model in known]

    def _check_together(self, named: Sequence[_Gpus], models: int) -> None:
        """Report entries that cannot be in the same layout.

        A layout must select each GPU only once, and must not select missing GPUs.
        """
        if len(named) > 1 and any(gpus.indices is None and gpus.models is None for gpus in named):
            self._differs(
                "", "one entry selects all GPUs, and another entry selects GPUs too: list the GPUs of each entry"
            )
            return
        if models > 1:
            self._differs(
                "",
                "it has several models, but a layout must not select missing GPUs: keep only the host's models",
            )
        for one, other in itertools.combinations(named, 2):
            both, shared = "%s and %s" % (one.place, other.place), one.shared_indices(other)
            if shared and not one.share_a_model(other):
                numbers = ", ".join(map(str, shared))
                what = "%s select GPU %s, each with another model: keep the entry of the host's model on each host"
                self._differs("", what % (both, numbers))
            elif shared or (one.share_a_model(other) and None in (one.indices, other.indices)):
                self._differs("", "%s select the same GPUs: keep them in one entry" % both)

    def _sharing(self, place: str, element: Mapping[str, Any]) -> dict[str, Any]:
        enabled = element.get("mig-enabled")
        if not isinstance(enabled, bool):
            raise self._no(place + ".mig-enabled", "true or false", enabled)
        devices = element.get("mig-devices") or {}
        if not isinstance(devices, Mapping):
            raise self._no(place + ".mig-devices", "a mapping of profiles to counts", devices)
        if not enabled:
            if devices:
                raise self._no(place + ".mig-devices", "none where mig-enabled is false", devices)
            return {"sharing": "shared"}
        return {"sharing": KEY, KEY: self._instances(place, devices)}

    def _instances(self, place: str, devices: Mapping[Any, Any]) -> list[dict[str, Any]]:
        whole: Counter[str] = Counter()
        parts: dict[str, list[ProfileName]] = {}
        for name, count in devices.items():
            if not is_integer(count) or count < 0:
                raise self._no("%s.mig-devices.%s" % (place, name), "a count", count)
            try:
                profile = parse_profile_name(str(name))
            except ProfileNameError as error:
                self._differs(place, "%s, and is left out" % error.problem)
                continue
            if profile.is_split:
                parts.setdefault(profile.gpu_instance, []).extend([profile] * count)
            # Add the key even for a count of 0, because instances are created in the order of the profiles in the file.
            whole[profile.gpu_instance] += 0 if profile.is_split else count
        found = []
        for gpu_instance, count in whole.items():
            found += [_instance(gpu_instance, count)] if count else []
            found += self._split(place, parts, gpu_instance)
        return found

    def _split(self, place: str, parts: Mapping[str, list[ProfileName]], gpu_instance: str) -> list[dict[str, Any]]:
        """Return the GPU instances that contain the compute instances of one profile."""
        asked = parts.get(gpu_instance)
        if not asked:
            return []
        slices = asked[0].gpu_slices
        shares = sharing([profile.compute_slices for profile in asked], slices)
        alike = [name for name, others in parts.items() if others and others[0].gpu_slices == slices]
        if shares is None or len(alike) > 1:
            names = ", ".join("%dx %s" % (number, name) for name, number in Counter(map(str, asked)).items())
            self._differs(
                place,
                "%s are left out, because the hardware decides which of them share an instance: use compute_instances"
                % names,
            )
            return []
        return [
            _instance(gpu_instance, count, ["%dc.%s" % (part, gpu_instance) for part in share])
            for share, count in Counter(shares).items()
        ]

    def _differs(self, place: str, what: str) -> None:
        self._problems.append("%s%s: %s" % (self._where, place, what))

    def _no(self, place: str, wanted: str, value: Any) -> FleetError:
        return FleetError(self._where + place, "expected %s, got %r" % (wanted, value), "Fix the file.")


def _pattern(models: Sequence[str], known: Iterable[str]) -> str:
    """Return a pattern such as ``H200*`` that matches only these models.

    The pattern is compared only with known models. Returns "" if there is no such pattern.
    """
    if len(models) < 2:
        return ""
    start = _common_start(models)
    shortest = min(len(model) for model in models) - len(start)
    end = _common_start([model[::-1][:shortest] for model in models])[::-1]
    for pattern in (start + "*" + end, start + "*"):
        if start and {model for model in known if fnmatchcase(model, pattern)} == set(models):
            return pattern
    return ""


def _common_start(texts: Sequence[str]) -> str:
    letters = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*texts))
    return "".join(column[0] for column in letters)


def sharing(parts: Sequence[int], slices: int) -> list[tuple[int, ...]] | None:
    """Return how mig-parted distributes compute instances over GPU instances.

    `parts` has the slices of each compute instance. `slices` is the number of slices of a GPU instance. Returns None if the
    distribution varies.

    mig-parted creates the largest compute instances first. It puts each of them into the newest GPU instance with
    enough room, or into a new GPU instance (pkg/mig/config). If the GPU has no room for the new instances, mig-parted
    tries other orders. The result then depends on the GPU, unless no other order needs fewer GPU instances.
    """
    shares: list[tuple[int, ...]] = []
    for part in sorted(parts, reverse=True):
        if shares and sum(shares[-1]) + part <= slices:
            shares[-1] += (part,)
        else:
            shares.append((part,))
    fewest = -(-sum(parts) // slices)
    alone = all(2 * part > slices for part in parts)
    return shares if len(shares) == fewest or alone else None


def _instance(profile: str, count: int, compute_instances: Sequence[str] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {"profile": profile}
    if count > 1:
        found["count"] = count
    if compute_instances:
        found["compute_instances"] = list(compute_instances)
    return found


def _numbers(indices: Sequence[int]) -> str:
    listed = ", ".join(map(str, indices))
    return "GPU %s is of" % listed if len(indices) == 1 else "GPUs %s are of" % listed
