# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define what a lease provides to its programs."""

from __future__ import annotations

from ..frozen import frozen


@frozen
class Grant:
    """The part of the GPUs that a lease has.

    number       number of the lease, which is also the number of its request
    gpu_uuids    UUIDs of the GPUs, in the order in which programs see them
    mig_uuids    UUIDs of the MIG devices, in the same order. Empty for a quota
    tenant       name of the vGPU tenant, or None for MIG
    environment  (name, value) of each variable for programs of the lease, such as CUDA_VISIBLE_DEVICES
    devices      paths of the device nodes that programs need. With MIG, no other GPU node is needed
    cdi          names of the CDI devices for containers
    group        Unix group that may use the quota, or None
    slice        systemd slice that limits the memory of programs outside containers, or None
    warnings     sentences about CDI specifications that could not be renewed
    """

    number: int
    gpu_uuids: tuple[str, ...]
    mig_uuids: tuple[str, ...] = ()
    tenant: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    devices: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    group: str | None = None
    slice: str | None = None
    warnings: tuple[str, ...] = ()
