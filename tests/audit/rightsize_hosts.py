# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create gpu_info's results for hosts that do not exist, and these hosts' history."""

from __future__ import annotations

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import find_model

MIB, GIB = 1 << 20, 1 << 30


def holder(name, uuid, instance=None, pid=None, **more):
    pid = pid or 1000 + sum(map(ord, "%s %s %s" % (name, uuid, instance)))
    return {
        "gpu_uuid": uuid, "gpu_instance_id": instance, "kind": "process", "who": "pid %d (python3, user alice, %s)" % (pid, name),
        "pid": pid, "user": "alice", "command": "python3", "unit_or_container": name, "job": None, "watches": False, **more,
    }  # fmt: skip


def gpu(host, index, key, unit=None, instances=(), holders=None, **more):
    """Return a GPU of a catalogue model as in gpu_info.

    `unit` holds the whole GPU. `instances` are (id, profile, start, unit or None).
    """
    model = find_model(key)
    uuid = "GPU-%s-%d" % (host, index)
    held = [holder(unit, uuid)] if unit else []
    made = []
    for number, profile, start, user in instances:
        found = model.profile(profile)
        of_instance = [holder(user, uuid, number)] if user else []
        held += of_instance
        processes = [{"pid": row["pid"], "kind": "compute", "name": "python3"} for row in of_instance]
        made.append(
            {
                "id": number, "profile": profile, "placement": {"start": start, "size": found.placement_size},
                "processes": processes, "holders": of_instance,
                "compute_instances": [{
                    "id": 0, "compute_slices": found.compute_slices, "mig_uuid": "MIG-%s-%d" % (uuid, number),
                    "placement": {"start": 0, "size": found.compute_slices}, "processes": processes,
                }],
            }
        )  # fmt: skip
    return {
        "index": index, "uuid": uuid, "name": model.name, "pci_address": "0000:%02x:00.0" % (index + 1),
        "memory_total_bytes": model.memory_total_mib * MIB, "compute_mode": None if instances else "default",
        "compute_capability": model.compute_capability, "architecture": model.architecture.lower(), "numa_node": 0,
        "nvlinks": [], "holders": held if holders is None else holders,
        "processes": [{"pid": row["pid"], "kind": "compute", "name": "python3"} for row in held],
        "mig": {"capable": model.mig_capable, "enabled": bool(instances), "pending": bool(instances), "instances": made},
        **more,
    }  # fmt: skip


def state(*gpus, tenants=(), daemons=()):
    return {
        "driver_present": True, "driver_version": "580.65.06", "nvml_version": "13.580.65.06", "cuda_version": "13.0",
        "simulated": True, "gpus": list(gpus), "mps_daemons": list(daemons), "vgpu_tenants": list(tenants),
    }  # fmt: skip
