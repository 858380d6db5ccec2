# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build GPUs from the catalogue, for plans of hosts without a running driver."""

from __future__ import annotations

from typing import Sequence

from .. import catalogue
from ..model import Gpu, GpuInstanceProfile, Mig, Placement

MIB = 1 << 20


def assumed_gpus(keys: Sequence[str], models: dict[str, catalogue.Model] | None = None) -> tuple[Gpu, ...]:
    """Return empty GPUs of these catalogue models, in the default modes.

    No selector matches the UUIDs and PCI addresses, which are placeholders. A GPU has the name of its model's first
    board. Raises CatalogueError for an unknown key.
    """
    known = {} if models is None else models
    chosen = [known.get(key) or catalogue.find_model(key) for key in keys]
    return tuple(_gpu(index, model, model.name) for index, model in enumerate(chosen))


def gpus_on_the_bus(devices: Sequence[tuple[str, str]]) -> tuple[Gpu, ...]:
    """Return GPUs, as `assumed_gpus` does, for these PCI addresses and device ids.

    A device id has four hex digits. Returns an empty tuple if the catalogue lacks one of the ids.
    """
    boards = {
        board.pci_device_id: (model, board.name) for model in catalogue.load_models().values() for board in model.boards
    }
    if any(device_id not in boards for _address, device_id in devices):
        return ()
    return tuple(_gpu(index, *boards[device_id], address) for index, (address, device_id) in enumerate(devices))


def _gpu(index: int, model: catalogue.Model, name: str, pci_address: str = "") -> Gpu:
    profiles = tuple(_profile(model, profile) for profile in model.profiles)
    return Gpu(
        index=index,
        uuid="assumed-%d" % index,
        name=name,
        pci_address=pci_address or "assumed-%d" % index,
        memory_total_bytes=model.memory_total_mib * MIB,
        mig=Mig(capable=model.mig_capable, profiles=profiles),
        architecture=model.architecture.lower(),
        compute_capability=model.compute_capability,
        compute_mode="default",
    )


def _profile(model: catalogue.Model, profile: catalogue.Profile) -> GpuInstanceProfile:
    return GpuInstanceProfile(
        name=profile.name,
        enum=profile.nvml_profile,
        profile_id=profile.profile_id,
        compute_slices=profile.compute_slices,
        memory_mib=model.profile_memory_mib(profile),
        multiprocessors=profile.multiprocessors,
        decoders=profile.decoders,
        encoders=profile.encoders,
        jpegs=profile.jpeg_engines,
        ofas=profile.ofa_engines,
        max_instances=profile.max_instances,
        placements=tuple(Placement(p.start, p.size) for p in profile.placements),
    )
