# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read which GPUs the kubelet has assigned to pods.

The sources are checkpoints of the kubelet's device manager and DRA manager. The formats are defined in
kubernetes/kubernetes, pkg/kubelet/cm/devicemanager/checkpoint and pkg/kubelet/cm/dra/state. DeviceIDs has one list per
NUMA node (until Kubernetes 1.19, a single list). The devices of a claim are in DriverState (until 1.31, in CDIDevices).
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Iterator

from ..frozen import frozen
from ..model import Holder, Host
from .device_ids import may_be_gpu, mentioned, named, without_parents
from .devices import Devices
from .model import KUBELET, unknown
from .processes import Processes

_DEVICES, _CLAIMS = "device-plugins/kubelet_internal_checkpoint", "dra_manager_state"


@frozen
class _Allocation:
    """Devices that are assigned to a pod.

    `resource` is the name of the resource, or of the claim's DRA driver. `what` names the container or claim in
    messages. `answer` is the text that the device plugin returned, or the claim in the DRA driver's checkpoint.
    """

    pod: str
    container: str | None
    resource: str
    what: str
    ids: tuple[str, ...]
    answer: str


def kubelet(host: Host, devices: Devices, processes: Processes, directory: str) -> list[Holder]:
    """Return a holder for each GPU or instance of each pod's containers and claims.

    The kubelet keeps an ended pod's allocation until it admits the next pod. So an allocation counts only while a
    cgroup shows a running process of the pod, or while the kubelet keeps the pod's folder. If the checkpoint is older
    than the boot, the folder counts only while the kubelet runs.
    """
    return [
        *_from(host, devices, processes, directory, _DEVICES, _allocations),
        *_from(host, devices, processes, directory, _CLAIMS, _claims),
    ]


def _from(host: Host, devices: Devices, processes: Processes, directory: str, name: str, read: Any) -> list[Holder]:
    checkpoint = Path(directory, name)
    try:
        allocations = list(read(json.loads(checkpoint.read_text()), directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        return unknown(
            host.gpus,
            "%s cannot be read (%s)" % (checkpoint, error.strerror),
            "Run as root (become: true).",
            recorded=True,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        problem = "%s is not a valid checkpoint" % checkpoint
        return unknown(host.gpus, problem, "Drain the node and restart the kubelet, which rewrites it.", recorded=True)
    running_pods = processes.pods() if allocations else set()
    past = allocations and not processes.named("kubelet") and checkpoint.stat().st_mtime < (processes.booted() or 0)
    holders = []
    for one in allocations:
        running = one.pod in running_pods
        if not running and (past or not Path(directory, "pods", one.pod).is_dir()):
            continue
        holders += _holders(host, devices, one, _pod_name(directory, one.pod), running)
    return holders


def _holders(host: Host, devices: Devices, given: _Allocation, pod: str, running: bool) -> list[Holder]:
    who = "%s of pod %s (%s)" % (given.what, pod, given.resource)
    if not running:
        who += ", which has no running process: delete the pod if it has ended"
    # Plugins that share GPUs (HAMi, Volcano) assign the device that the scheduler chose, not the kubelet's choice.
    # Their answer has the device's UUID, unless the plugin assigns devices by index.
    places = mentioned(host, given.answer)
    by_id = [] if places else [(device, named(host, devices, device, given.resource)) for device in given.ids]
    # Ignore ids of devices that the host does not have.
    places = places or without_parents({place for _device, known in by_id for place in known or ()})
    holders = [
        Holder(uuid, instance, KUBELET, who, unit_or_container=given.container, job=given.pod)
        for uuid, instance in places
    ]
    unknown_ids = [device for device, known in by_id if known is None]
    if unknown_ids:
        problem = '%s has the device "%s", whose GPU cannot be determined' % (who, unknown_ids[0])
        return holders + unknown(host.gpus, problem, "Delete the pod, or drain the node.", job=given.pod, recorded=True)
    if _nameless_instances(host) and not places and may_be_gpu(given.resource):
        holders += unknown(
            host.gpus,
            "%s has a device that cannot be determined" % who,
            "Drain the node.",
            job=given.pod,
            recorded=True,
        )
    return holders


def _allocations(data: Any, directory: str) -> Iterator[_Allocation]:
    for entry in data["Data"]["PodDeviceEntries"] or []:
        container, nodes = entry["ContainerName"], entry["DeviceIDs"]
        lists = nodes.values() if isinstance(nodes, dict) else [nodes]
        yield _Allocation(
            entry["PodUID"],
            container,
            entry["ResourceName"],
            "container %s" % container,
            tuple(str(device) for devices in lists for device in devices),
            _decoded(entry.get("AllocResp")),
        )


def _claims(data: Any, directory: str) -> Iterator[_Allocation]:
    """Yield the devices of each pod and claim.

    The kubelet's checkpoint has no UUIDs, so they are read from the DRA driver's checkpoint.
    """
    # Since Kubernetes 1.32, the file has the list as JSON text (pkg/kubelet/cm/dra/state/checkpoint.go).
    entries = (
        json.loads(data["Data"])["ClaimInfoStateList"] if isinstance(data.get("Data"), str) else data.get("entries")
    )
    for entry in entries or []:
        drivers = {
            driver: [name for device in state["Devices"] or [] for name in _device_names(device)]
            for driver, state in (entry.get("DriverState") or {}).items()
        }
        drivers = drivers or {
            driver: list(map(_cdi_name, ids)) for driver, ids in (entry.get("CDIDevices") or {}).items()
        }
        for driver, ids in drivers.items():
            answer = _prepared(directory, driver, entry["ClaimUID"]) if may_be_gpu(driver) else ""
            # This collection's plugin names the GPUs of a lease or a tenant as CDI devices.
            answer = answer or _cdi_of(entry, driver)
            what = "claim %s/%s" % (entry["Namespace"], entry["ClaimName"])
            for pod in entry["PodUIDs"] or ():
                yield _Allocation(pod, None, driver, what, tuple(ids), answer)


def _device_names(device: Any) -> list[str]:
    """Return the name of a claimed device, or its CDI names if it has no name."""
    return [device["DeviceName"]] if device.get("DeviceName") else list(map(_cdi_name, device["CDIDeviceIDs"] or ()))


def _cdi_of(entry: Any, driver: str) -> str:
    """Return the CDI devices that a driver returned for a claim, as text."""
    state = (entry.get("DriverState") or {}).get(driver) or {}
    return "\n".join(name for device in state.get("Devices") or () for name in device.get("CDIDeviceIDs") or ())


def _cdi_name(name: str) -> str:
    return name.rpartition("=")[2]


def _prepared(directory: str, driver: str, claim: str) -> str:
    """Return a claim from the driver's checkpoint, as text.

    Returns "" if the claim cannot be read. The format is defined in NVIDIA/k8s-dra-driver-gpu,
    cmd/gpu-kubelet-plugin/checkpoint.go.
    """
    try:
        data = json.loads(Path(directory, "plugins", driver, "checkpoint.json").read_text())
        versions = [data[version] for version in ("v2", "v1") if data.get(version)]
        claims = [version["preparedClaims"][claim]["preparedDevices"] for version in versions[:1]]
        return json.dumps(claims)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""


def _decoded(answer: Any) -> str:
    """Decode a device plugin's answer.

    The answer is a protocol buffer in base64 (ContainerAllocateResponse in deviceplugin/v1beta1).
    """
    try:
        return base64.b64decode(answer or "").decode("latin-1")
    except (ValueError, TypeError):
        return ""


def _nameless_instances(host: Host) -> bool:
    """Return whether a MIG device has no UUID.

    A UUID that matches no device may then be this MIG device's UUID.
    """
    instances = (instance for gpu in host.gpus for instance in gpu.mig.instances)
    return any(compute.mig_uuid is None for instance in instances for compute in instance.compute_instances)


def _pod_name(directory: str, pod: str) -> str:
    """Return a pod's namespace/name, or its UID if the name is unknown.

    The kubelet names the folder of the pod's logs <namespace>_<name>_<uid>.
    """
    logs = Path(directory, "../../log/pods").resolve()
    for folder in logs.glob("*_%s" % pod):
        namespace, name = folder.name.split("_")[:2]
        return "%s/%s" % (namespace, name)
    return pod
