# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read all MIG data with NVML's read-only functions.

This includes profiles, instances, compute instances and MIG devices.
"""

from __future__ import annotations

from typing import Any, Iterator

from ..errors import NvmlError
from ..vendors.nvidia.nvml.calls import INVALID_ARGUMENT, NOT_FOUND
from . import getters
from .asking import Asking, Reading, plain


class MigReader(Asking):
    """An NVML session that reads MIG."""

    def _profile_infos(self, handle: Any) -> list[tuple[int, Any]]:
        infos = []
        for number in range(self._nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = self._optional("nvmlDeviceGetGpuInstanceProfileInfo", handle, number, also=(INVALID_ARGUMENT,))
            except NvmlError:
                continue
            if info is not None:
                infos.append((number, info))
        return infos

    def _instances_of(self, handle: Any) -> list[tuple[Any, int]]:
        """Return (GPU instance, id of its profile) for each GPU instance.

        Skips the instances of a profile if NVML cannot list them.
        """
        instances = []
        for _number, info in self._profile_infos(handle):
            try:
                listed = self._list(
                    self._nvml.c_nvmlGpuInstance_t, "nvmlDeviceGetGpuInstances", handle, info.id, optional=True
                )
            except NvmlError:
                continue
            instances += [(instance, info.id) for instance in listed]
        return instances

    def _mig_readings(self, handle: Any) -> Iterator[Reading]:
        nvml = self._nvml
        for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            words = "profile %d" % number
            info = self._custom(
                "nvmlDeviceGetGpuInstanceProfileInfo",
                words,
                lambda number=number: nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number),
            )
            if info.get("code") == INVALID_ARGUMENT:
                # NVML has no profile with this number, so it has no further profiles.
                break
            yield info
            if "value" not in info:
                continue
            identity = info["value"]["id"]
            for call in ("nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstanceProfileInfoByIdV"):
                argument = number if call.endswith("InfoV") else identity
                yield self._reading(getters.Getter(call, (argument,), words), handle)
            # By default, pynvml calls the latest version of the function.
            first = getters.Getter("nvmlDeviceGetGpuInstanceProfileInfo", (number, 1), "version 1, %s" % words)
            yield self._reading(first, handle)
            yield self._custom(
                "nvmlDeviceGetGpuInstancePossiblePlacements",
                words,
                lambda identity=identity: self._listed(
                    nvml.c_nvmlGpuInstancePlacement_t, "nvmlDeviceGetGpuInstancePossiblePlacements", handle, identity
                ),
            )
            yield self._reading(getters.Getter("nvmlDeviceGetGpuInstanceRemainingCapacity", (identity,), words), handle)
            yield self._custom(
                "nvmlDeviceGetGpuInstances",
                "%s count" % words,
                lambda identity=identity: len(
                    self._listed(nvml.c_nvmlGpuInstance_t, "nvmlDeviceGetGpuInstances", handle, identity, keep=True)
                ),
            )
        for instance, _profile in self._instances_of(handle):
            yield from self._instance_readings(handle, instance)
        yield from self._mig_device_readings(handle)

    def _instance_readings(self, handle: Any, instance: Any) -> Iterator[Reading]:
        nvml = self._nvml
        info = self._custom("nvmlGpuInstanceGetInfo", "", lambda: nvml.nvmlGpuInstanceGetInfo(instance))
        if "value" not in info:
            yield info
            return
        number, words = info["value"]["id"], "gi %d" % info["value"]["id"]
        yield dict(info, of=words)
        yield self._custom(
            "nvmlDeviceGetGpuInstanceById",
            words,
            lambda: nvml.nvmlGpuInstanceGetInfo(nvml.nvmlDeviceGetGpuInstanceById(handle, number)).id,
        )
        shared = nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        for profile in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            of = "%s profile %d" % (words, profile)
            profile_info = self._reading(
                getters.Getter("nvmlGpuInstanceGetComputeInstanceProfileInfo", (profile, shared), of), instance
            )
            if profile_info.get("code") == INVALID_ARGUMENT:
                break
            yield profile_info
            yield self._reading(
                getters.Getter("nvmlGpuInstanceGetComputeInstanceProfileInfoV", (profile, shared), of), instance
            )
            call, of_first = "nvmlGpuInstanceGetComputeInstanceProfileInfo", "version 1, %s" % of
            yield self._reading(getters.Getter(call, (profile, shared, 1), of_first), instance)
            if "value" in profile_info:
                yield from self._compute_readings(instance, profile_info["value"]["id"], of)

    def _compute_readings(self, instance: Any, profile: int, of: str) -> Iterator[Reading]:
        nvml = self._nvml
        yield self._custom(
            "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
            of,
            lambda: self._listed(
                nvml.c_nvmlComputeInstancePlacement_t,
                "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
                instance,
                profile,
            ),
        )
        yield self._reading(
            getters.Getter("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", (profile,), of), instance
        )
        listed: list[Any] = []
        yield self._custom(
            "nvmlGpuInstanceGetComputeInstances",
            "%s count" % of,
            lambda: listed.extend(
                self._listed(
                    nvml.c_nvmlComputeInstance_t, "nvmlGpuInstanceGetComputeInstances", instance, profile, keep=True
                )
            ),
        )
        for compute in listed:
            info = self._custom("nvmlComputeInstanceGetInfo", of, lambda compute=compute: self._compute_info(compute))
            yield info
            if "value" in info:
                number = info["value"]["id"]
                yield self._custom(
                    "nvmlGpuInstanceGetComputeInstanceById",
                    "%s ci %d" % (of, number),
                    lambda number=number: self._compute_info(
                        nvml.nvmlGpuInstanceGetComputeInstanceById(instance, number)
                    )["id"],
                )

    def _compute_info(self, compute: Any) -> dict[str, Any]:
        info = self._nvml.nvmlComputeInstanceGetInfo(compute)
        return {"id": info.id, "profileId": info.profileId, "placement": plain(info.placement)}

    def _mig_device_readings(self, handle: Any) -> Iterator[Reading]:
        nvml = self._nvml
        try:
            most = self._optional("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        except NvmlError:
            return
        for number in range(most):
            words = "mig %d" % number
            found: list[Any] = []
            reading = self._custom(
                "nvmlDeviceGetMigDeviceHandleByIndex",
                words,
                lambda number=number, found=found: found.append(
                    nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                ),
            )
            if reading.get("code") == NOT_FOUND:
                # NVML has no MIG device at this index, but may have one at a higher index.
                continue
            yield reading
            if not found:
                return
            device = found[0]
            for call in ("GetGpuInstanceId", "GetComputeInstanceId", "GetAttributes", "GetUUID", "GetMemoryInfo"):
                yield self._reading(getters.Getter("nvmlDevice" + call, (), words), device)
            yield self._custom(
                "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
                words,
                lambda device=device: self._index(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)),
            )
