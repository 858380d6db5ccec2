# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kubelet has given to pods: its device manager's checkpoint, a JSON file.

Format: kubernetes/kubernetes, pkg/kubelet/cm/devicemanager/checkpoint. Until 1.19 DeviceIDs was a list; since then it
maps NUMA nodes to lists. Device names are those of NVIDIA's device plugin: a GPU's or MIG device's UUID, with "::N"
behind it for a replica of a shared one (k8s-device-plugin, internal/rm).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..model import Holder, Host
from .model import KUBELET, place_of, unknown
from .processes import Processes

_RESOURCES = "nvidia.com/"


def kubelet(host: Host, processes: Processes, directory: str) -> list[Holder]:
    """A holder for each container of a pod and each GPU or GPU instance that it was given.

    The kubelet strikes out the allocations of pods that have ended only when it admits the next one. So an entry counts
    while a process of its pod runs, as the cgroups tell, or while the kubelet keeps the pod's folder. What the file says
    of before the boot holds nothing until the kubelet runs again, which then hands out devices again.
    """
    checkpoint = Path(directory, "device-plugins/kubelet_internal_checkpoint")
    try:
        entries = json.loads(checkpoint.read_text())["Data"]["PodDeviceEntries"] or []
        given = [(e["PodUID"], e["ContainerName"], e["ResourceName"], _devices(e["DeviceIDs"])) for e in entries]
    except FileNotFoundError:
        return []
    except OSError as error:
        return unknown(
            host.gpus, "%s cannot be read (%s)" % (checkpoint, error.strerror), "Run as root (become: true)."
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        problem = "%s is not what a kubelet writes" % checkpoint
        return unknown(host.gpus, problem, "Restart the kubelet, which rewrites it; drain the node first.")
    running_pods = processes.pods() if given else set()
    past = given and not processes.named("kubelet") and checkpoint.stat().st_mtime < (processes.booted() or 0)
    holders = []
    for pod, container, resource, devices in given:
        running = pod in running_pods
        kept = not past and Path(directory, "pods", pod).is_dir()
        if not resource.startswith(_RESOURCES) or not (running or kept):
            continue
        who = "container %s of pod %s (%s)" % (container, _pod_name(directory, pod), resource)
        if not running:
            who += ", of which nothing runs just now: delete the pod if it has ended"
        # A name that no device of the host has is an allocation of something that is gone, and holds nothing.
        places = {place for place in (place_of(host, device.partition("::")[0]) for device in devices) if place}
        holders += [
            Holder(uuid, instance, KUBELET, who, unit_or_container=container, job=pod) for uuid, instance in places
        ]
        if _nameless_instances(host) and not places:
            holders += unknown(host.gpus, "%s has a device that cannot be told" % who, "Drain the node.", job=pod)
    return holders


def _devices(ids: Any) -> list[str]:
    return [device for devices in ids.values() for device in devices] if isinstance(ids, dict) else list(ids)


def _nameless_instances(host: Host) -> bool:
    """Whether the driver left out the UUID of a MIG device, so that a name that is not found proves nothing."""
    instances = (instance for gpu in host.gpus for instance in gpu.mig.instances)
    return any(compute.mig_uuid is None for instance in instances for compute in instance.compute_instances)


def _pod_name(directory: str, pod: str) -> str:
    """namespace/name from the folder of the pod's logs, <namespace>_<name>_<uid>; the uid where there is none."""
    logs = Path(directory, "../../log/pods").resolve()
    for folder in logs.glob("*_%s" % pod):
        namespace, name = folder.name.split("_")[:2]
        return "%s/%s" % (namespace, name)
    return pod
