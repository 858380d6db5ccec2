# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the paths and contents of the tenants' files. Pure functions.

Paths are relative to the host's root. The library and its tools read the quota file and the files in /run, whose
formats roles/vgpu_limiter/files/src defines.
"""

from __future__ import annotations

import json
from typing import Any, Iterable, Sequence

from ...cdi import specification
from ...errors import Problem
from ...frozen import frozen
from ...holders.mps_control import PIPE_DIRECTORY, client_mounts, daemon_of, pipe_directory
from ...sizes import BYTES_PER_UNIT
from ..limited_folder import LimitedFolder
from .model import DMEM, MPS, REGION_VERSION, STATE, TENANTS, VgpuTenant, folder, region_path, spec_path, to_data

#: Paths of the library, the turnstiles and the agent's files, relative to the host's root.
PROGRAMS = "usr/lib/openfleet-gpu/vgpu"
GPUS, AGENT = STATE + "/gpus", STATE + "/agent"
#: Name of the agent's socket in each tenant's folder below AGENT, and path of the public file.
AGENT_SOCKET, SHOWN = "turnstiles.1", STATE + "/seats.1"
LIBRARY = PROGRAMS + "/libopenfleet-vgpu.so"
#: A file with one line: the library's path. Containers mount it as /etc/ld.so.preload.
PRELOAD_LIST = PROGRAMS + "/ld.so.preload"
#: The front is a libcuda.so.1 that loads the library and then the driver's file (front.c in the role vgpu_limiter).
#: FRONT_CONF has its folder's path. In containers, ldconfig reads FRONT_CONF_INSIDE before nvidia-container-toolkit's
#: 00-nvcr-*.conf. It reads 00-compat-*.conf and 00-cuda-compat.conf even earlier, so that the image's libraries for a
#: newer driver have precedence.
FRONT, FRONT_CONF = PROGRAMS + "/front/libcuda.so.1", PROGRAMS + "/front.conf"
FRONT_CONF_INSIDE = "etc/ld.so.conf.d/00-driver-openfleet-vgpu.conf"
#: Possible paths of the driver's libcuda.so.1 on hosts, and its path in containers with the front.
DRIVERS = tuple(
    "usr/%s/libcuda.so.1" % folder for folder in ("lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib")
)
DRIVER_INSIDE = "usr/lib/openfleet-gpu/driver/libcuda.so.1"
TMPFILES_PATH = "etc/tmpfiles.d/openfleet-vgpu.conf"
#: Sizes in bytes of a tenant's region and a GPU's turnstile file. They equal the sizes of the library's structures in
#: region.h and turnstile.h.
REGION_BYTES, TURNSTILE_BYTES = 328512, 17024
#: Sizes in bytes of the agent's memory: a tenant's page for a GPU, and the terms for a GPU's tenants (turnstile.h).
SEAT_PAGE_BYTES, TERMS_BYTES = 4096, 8192
#: Size in MiB of the tmpfs on STATE. If the files could fill more than half of it, a multiple is used.
_MOUNT_MIB = 64

#: Kind of the tenants' CDI devices: openfleet.io/vgpu=NAME.
CDI_KIND = "openfleet.io/vgpu"
#: Format version of the quota file.
QUOTA_VERSION = 1


def quota_path(name: str) -> str:
    return folder(name) + "/quota"


def drop_in_path(name: str) -> str:
    return folder(name) + "/systemd.conf"


def slice_path(name: str) -> str:
    return folder(name) + "/slice"


def cdi_path(name: str) -> str:
    return "etc/cdi/openfleet-vgpu-%s.json" % name


def alias_path(name: str) -> str:
    """Return the path of the file that maps an alias to its tenant."""
    return folder(name) + "/alias_of"


def agent_folder(key: str) -> str:
    """Return the folder of the tenant's agent socket. Containers mount it."""
    return "%s/%s" % (AGENT, key)


def nvml_report_path(key: str) -> str:
    """Return the path of the tenant's file with the agent's NVML report.

    nvml_report.h defines its format.
    """
    return "%s/nvml.%d" % (agent_folder(key), REGION_VERSION)


def turnstile_path(gpu_uuid: str) -> str:
    return "%s/%s.%d" % (GPUS, gpu_uuid, REGION_VERSION)


def name_problem(name: str) -> Problem | None:
    """Return why a tenant cannot have a name that gpu_layout allows, or None."""
    if not name[-1:].isalnum():
        # Rule for device names: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
        problem = "the name of a CDI device cannot end in %s" % name[-1:]
        return Problem('the tenant "%s"' % name, problem, "End the name in a letter or digit.")
    return None


def slice_of(key: str) -> str:
    """Return the systemd slice whose cgroup limits the tenant's memory under dmem.

    Dashes in the key are replaced, because a dash in a slice's name nests it in another slice (systemd.slice(5)). One
    tenant's limit would then also apply to another tenant.
    """
    return "openfleet-vgpu-%s.slice" % key.replace("-", "\\x2d")


def files(tenant: VgpuTenant, driver: str | None = None) -> dict[str, str]:
    """Return the tenant's files in the order of writing.

    Running processes follow changes of the file `quota`. `driver` is the path of the driver's libcuda.so.1 for
    containers with the front. None means that containers get no front.
    """
    own = {spec_path(tenant.key): _json(to_data(tenant))}
    for name in tenant.names:
        own.update(_files_of_name(tenant, name, driver))
    return own


def drop_ins(tenant: VgpuTenant) -> list[str]:
    """Return the paths of the tenant's drop-ins for services.

    A lease has none, because systemd would have to reload all units when it starts and ends.
    """
    return [] if tenant.lease is not None else [drop_in_path(name) for name in tenant.names]


def _files_of_name(tenant: VgpuTenant, name: str, driver: str | None) -> dict[str, str]:
    """Return the files that start programs as the tenant under one of its names."""
    own = {
        quota_path(name): _quota(tenant, name),
        folder(name) + "/env": _environment(tenant, name),
        **({drop_in_path(name): _drop_in(tenant, name)} if tenant.lease is None else {}),
        cdi_path(name): _json(_cdi(tenant, name, driver)),
    }
    if tenant.provider == DMEM:
        own[slice_path(name)] = slice_of(tenant.key) + "\n"
    if name != tenant.name:
        own[alias_path(name)] = tenant.name + "\n"
    return own


@frozen
class SharedFile:
    """A shared memory file: its path, group and maximum size.

    Members of `group` may write the file, or every user if `group` is None. The file is created empty. The library sets
    its size and content.
    """

    path: str
    group: str | None
    most_bytes: int

    @property
    def mode(self) -> int:
        """Return the permission bits of the file."""
        return 0o666 if self.group is None else 0o660


def shared_files(tenant: VgpuTenant) -> list[SharedFile]:
    """Return the tenant's region and its GPUs' turnstiles.

    All tenants of a GPU write to its turnstile.
    """
    region = SharedFile(region_path(tenant.key), tenant.group, REGION_BYTES)
    return [region, *(SharedFile(turnstile_path(uuid), None, TURNSTILE_BYTES) for uuid in tenant.gpus)]


def tmpfiles(tenants: Iterable[VgpuTenant]) -> str:
    """Return the lines for systemd-tmpfiles (tmpfiles.d(5)).

    systemd-tmpfiles creates the files in /run at each boot.
    """
    lines = ["d /%s 0755 root root -" % path for path in ("run/openfleet-gpu", STATE, TENANTS, GPUS, AGENT)]
    regions: list[str] = []
    turnstiles: set[str] = set()
    for tenant in sorted(tenants, key=lambda each: each.key):
        region, *others = shared_files(tenant)
        regions += ["d /%s/%s 0755 root root -" % (TENANTS, tenant.key), _tmpfiles_line(region)]
        regions.append("d /%s 0755 root root -" % agent_folder(tenant.key))
        turnstiles.update(_tmpfiles_line(other) for other in others)
    lines += [*regions, *sorted(turnstiles)]
    return "# Written by openfleet.gpu for the tenants in gpu_layout.\n" + "".join(line + "\n" for line in lines)


def _tmpfiles_line(file: SharedFile) -> str:
    return "f /%s %04o root %s -" % (file.path, file.mode, file.group or "root")


def limited_folder(tenants: Sequence[VgpuTenant]) -> LimitedFolder:
    """Return the tmpfs that is mounted on STATE.

    Its size is a multiple of _MOUNT_MIB and at least twice the size of all files.
    """
    sizes = {file.path: file.most_bytes for tenant in tenants for file in shared_files(tenant)}
    chunks = -(-2 * sum(sizes.values()) // (_MOUNT_MIB * BYTES_PER_UNIT["MiB"]))
    return LimitedFolder(
        path=STATE,
        size_mib=_MOUNT_MIB * max(1, chunks),
        most_files=65536,
        mode=0o755,
        description="Shared memory of vGPU tenants",
        comment="the tenants in gpu_layout",
    )


def _quota(tenant: VgpuTenant, name: str) -> str:
    """Return the quota file.

    Under MPS, 0 bytes and 100 percent disable the library's limits. Under dmem, the library also limits memory, because
    the kernel does not limit processes outside the tenant's slice, such as processes in containers.
    """
    memory = 0 if tenant.provider == MPS else tenant.memory_bytes
    percent = 100 if tenant.provider == MPS else tenant.sm_percent
    return "".join(
        [
            "# Quota of the tenant %s. Written by openfleet.gpu, change gpu_layout instead.\n" % name,
            "version %d\n" % QUOTA_VERSION,
            "tenant %s\n" % name,
            # Older libraries do not know this line. Their processes have the key as their only name, so they never read
            # it.
            *(["counted_as %s\n" % tenant.key] if tenant.key != name else []),
            "policy %s\n" % tenant.policy,
            "priority %d\n" % tenant.priority,
            # Older libraries do not know the policy colocate, and refuse this file.
            *(["waterline %d\n" % tenant.waterline_percent] if tenant.waterline_percent is not None else []),
            *(["managed oversubscribed\n"] if tenant.oversubscribe_managed else []),
            *(
                "gpu %s memory %d sm %d seat %d\n" % (seat.gpu_uuid, memory, percent, seat.seat)
                for seat in tenant.seats
            ),
        ]
    )


def _variables(tenant: VgpuTenant, name: str) -> dict[str, str]:
    """Return the environment of the tenant's processes, also in containers.

    An MPS client sets its own limits: https://docs.nvidia.com/deploy/mps/ (Environment Variables). It sees one device,
    with index 0.
    """
    variables = {"OPENFLEET_VGPU": name, "CUDA_VISIBLE_DEVICES": ",".join(tenant.gpus)}
    if tenant.provider == MPS:
        variables[PIPE_DIRECTORY] = pipe_directory(daemon_of(tenant.gpus[0]))
        variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(tenant.sm_percent)
        variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "0=%dM" % (tenant.memory_bytes // BYTES_PER_UNIT["MiB"])
    return variables


def environment(tenant: VgpuTenant, name: str) -> dict[str, str]:
    """Return the environment of the tenant's processes outside containers."""
    variables = _variables(tenant, name)
    if tenant.provider != MPS:
        variables["LD_PRELOAD"] = "/" + LIBRARY
    return variables


def _environment(tenant: VgpuTenant, name: str) -> str:
    comment = "# Environment of the tenant %s, for EnvironmentFile= or --env-file. Written by openfleet.gpu.\n"
    return comment % name + "".join("%s=%s\n" % item for item in environment(tenant, name).items())


def _drop_in(tenant: VgpuTenant, name: str) -> str:
    lines = [
        "# Runs a service as the tenant %s, if linked in its NAME.service.d. Written by openfleet.gpu." % name,
        "[Service]",
        "EnvironmentFile=/%s/env" % folder(name),
        # Without this line, ProtectSystem=strict in a service would make the region read-only.
        "ReadWritePaths=-/%s" % STATE,
    ]
    if tenant.group is not None:
        lines.append("SupplementaryGroups=%s" % tenant.group)
    if tenant.provider == DMEM:
        lines.append("Slice=%s" % slice_of(tenant.key))
    return "".join(line + "\n" for line in lines)


def _cdi(tenant: VgpuTenant, name: str, driver: str | None) -> dict[str, Any]:
    """Return the CDI device of the tenant.

    The GPU is a separate device, nvidia.com/gpu=UUID. Files that containers only read are mounted by directory, so that
    containers see replaced files. Files that containers write are mounted one by one, so that containers cannot add or
    replace files.
    Source: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
    """
    edits = {
        "env": ["%s=%s" % item for item in _variables(tenant, name).items()],
        "mounts": client_mounts(daemon_of(tenant.gpus[0])) if tenant.provider == MPS else _mounts(tenant, name, driver),
    }
    return specification.device(CDI_KIND, name, edits)


def _mounts(tenant: VgpuTenant, name: str, driver: str | None) -> list[dict[str, Any]]:
    read, write = (["bind", mode, "nosuid", "nodev"] for mode in ("ro", "rw"))
    mounts = [
        ("/" + PROGRAMS, "/" + PROGRAMS, read),
        ("/" + folder(name), "/" + folder(name), [*read, "noexec"]),
        ("/" + PRELOAD_LIST, "/etc/ld.so.preload", [*read, "noexec"]),
        # Mount the folder instead of the socket, because a restarted agent creates a new socket. Clients can connect
        # through a read-only mount.
        ("/" + agent_folder(tenant.key), "/" + agent_folder(tenant.key), [*read, "noexec"]),
        *(("/" + file.path, "/" + file.path, [*write, "noexec"]) for file in shared_files(tenant)),
    ]
    if driver is not None:
        mounts.append(("/" + FRONT_CONF, "/" + FRONT_CONF_INSIDE, [*read, "noexec"]))
        # Use the link without the driver's version, which the engine resolves when a container starts.
        mounts.append(("/" + driver, "/" + DRIVER_INSIDE, read))
    return [{"hostPath": host, "containerPath": inside, "options": options} for host, inside, options in mounts]


def _json(data: Any) -> str:
    return json.dumps(data, indent=1) + "\n"
