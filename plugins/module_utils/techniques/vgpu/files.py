# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of tenants: what is in them, by their paths below the root of the host. Pure.

The library and its tools read quota and the files below /run (their formats: roles/vgpu_limiter/files/src); the role
vgpu_limiter installs them.
"""

from __future__ import annotations

import json
from typing import Any, Iterable, Sequence

from ... import cdi_spec
from ...errors import Problem
from ...frozen import frozen
from ...limited_folder import LimitedFolder
from ...mps_control import PIPE_DIRECTORY, client_mounts, daemon_of, pipe_directory
from ...sizes import BYTES_PER_UNIT
from .model import DMEM, MPS, REGION_VERSION, STATE, TENANTS, VgpuTenant, folder, region_path, spec_path, to_data

#: Below the root of the host: the library, and what changes beside regions.
PROGRAMS = "usr/lib/openfleet-gpu/vgpu"
GPUS, AGENT = STATE + "/gpus", STATE + "/agent"
#: Of the agent (`agent`): its socket in a folder of each tenant below AGENT, and what every user may read.
AGENT_SOCKET, SHOWN = "turnstiles.1", STATE + "/seats.1"
LIBRARY = PROGRAMS + "/libopenfleet-vgpu.so"
#: One line, the library's path: what containers get as their /etc/ld.so.preload.
PRELOAD_LIST = PROGRAMS + "/ld.so.preload"
#: A libcuda.so.1 that needs the library and then the driver's file (front.c in the role vgpu_limiter), and one line: its
#: folder. Containers get that line under a name that ldconfig reads before nvidia-container-toolkit's 00-nvcr-*.conf, so that
#: the front is found first, and after the 00-compat-*.conf and 00-cuda-compat.conf of a newer driver's libraries in the image.
FRONT, FRONT_CONF = PROGRAMS + "/front/libcuda.so.1", PROGRAMS + "/front.conf"
FRONT_CONF_INSIDE = "etc/ld.so.conf.d/00-driver-openfleet-vgpu.conf"
#: Where hosts have the driver's libcuda.so.1, and where the front looks for it in containers.
DRIVERS = tuple(
    "usr/%s/libcuda.so.1" % folder for folder in ("lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib")
)
DRIVER_INSIDE = "usr/lib/openfleet-gpu/driver/libcuda.so.1"
TMPFILES_PATH = "etc/tmpfiles.d/openfleet-vgpu.conf"
#: Size in bytes of a tenant's region and of a GPU's turnstile file: sizeof in region.h and turnstile.h of the library.
REGION_BYTES, TURNSTILE_BYTES = 328512, 17024
#: Of what the agent hands out: a tenant's page for a GPU, and the terms of all its tenants (turnstile.h).
SEAT_PAGE_BYTES, TERMS_BYTES = 4096, 8192
#: The tmpfs on STATE has this size, in MiB, or a multiple of it where the files alone could fill half of it.
_MOUNT_MIB = 64

#: The device of a tenant in containers is openfleet.io/vgpu=NAME.
CDI_KIND = "openfleet.io/vgpu"
#: Of quota.
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
    """The file that says of which tenant this is another name."""
    return folder(name) + "/alias_of"


def agent_folder(key: str) -> str:
    """The folder of the socket by which the agent hands the tenant its turnstiles. Containers have it mounted."""
    return "%s/%s" % (AGENT, key)


def nvml_report_path(key: str) -> str:
    """The file in which the agent tells the tenant's processes what NVML says of them (nvml_report.h)."""
    return "%s/nvml.%d" % (agent_folder(key), REGION_VERSION)


def turnstile_path(gpu_uuid: str) -> str:
    return "%s/%s.%d" % (GPUS, gpu_uuid, REGION_VERSION)


def name_problem(name: str) -> Problem | None:
    """Why a tenant cannot have this name, which gpu_layout allows."""
    if not name[-1:].isalnum():
        # https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md (names of devices)
        problem = "no CDI device can have a name that ends in %s" % name[-1:]
        return Problem('the tenant "%s"' % name, problem, "Let it end in a letter or digit.")
    return None


def slice_of(key: str) -> str:
    """The systemd slice whose cgroup bounds the tenant's memory where the provider is dmem.

    A dash would nest slices (systemd.slice(5)), and the limit of one tenant would bind another.
    """
    return "openfleet-vgpu-%s.slice" % key.replace("-", "\\x2d")


def files(tenant: VgpuTenant, driver: str | None = None) -> dict[str, str]:
    """The tenant's own files, in the order in which they are written. `quota` is the one that running processes heed.

    `driver` is the path of the driver's libcuda.so.1 for containers that get the front; None: they get none.
    """
    own = {spec_path(tenant.key): _json(to_data(tenant))}
    for name in tenant.names:
        own.update(_files_of_name(tenant, name, driver))
    return own


def _files_of_name(tenant: VgpuTenant, name: str, driver: str | None) -> dict[str, str]:
    """Return what makes programs processes of the tenant under one of its names."""
    own = {
        quota_path(name): _quota(tenant, name),
        folder(name) + "/env": _environment(tenant, name),
        drop_in_path(name): _drop_in(tenant, name),
        cdi_path(name): _json(_cdi(tenant, name, driver)),
    }
    if tenant.provider == DMEM:
        own[slice_path(name)] = slice_of(tenant.key) + "\n"
    if name != tenant.name:
        own[alias_path(name)] = tenant.name + "\n"
    return own


@frozen
class SharedFile:
    """A file that processes share memory in: its path, who may write it (None: every user), its size in bytes at most.

    It is created empty; the library gives it size and content.
    """

    path: str
    group: str | None
    most_bytes: int

    @property
    def mode(self) -> int:
        """Permission bits of the file."""
        return 0o666 if self.group is None else 0o660


def shared_files(tenant: VgpuTenant) -> list[SharedFile]:
    """Return the tenant's region, and the turnstiles of its GPUs, which all tenants of a GPU write."""
    region = SharedFile(region_path(tenant.key), tenant.group, REGION_BYTES)
    return [region, *(SharedFile(turnstile_path(uuid), None, TURNSTILE_BYTES) for uuid in tenant.gpus)]


def tmpfiles(tenants: Iterable[VgpuTenant]) -> str:
    """Return the lines for systemd-tmpfiles (tmpfiles.d(5)), which creates the files below /run at each boot."""
    lines = ["d /%s 0755 root root -" % path for path in ("run/openfleet-gpu", STATE, TENANTS, GPUS, AGENT)]
    regions: list[str] = []
    turnstiles: set[str] = set()
    for tenant in sorted(tenants, key=lambda each: each.key):
        region, *others = shared_files(tenant)
        regions += ["d /%s/%s 0755 root root -" % (TENANTS, tenant.key), _tmpfiles_line(region)]
        regions.append("d /%s 0755 root root -" % agent_folder(tenant.key))
        turnstiles.update(_tmpfiles_line(other) for other in others)
    lines += [*regions, *sorted(turnstiles)]
    return "# Written by openfleet.gpu for the tenants that gpu_layout names.\n" + "".join(
        line + "\n" for line in lines
    )


def _tmpfiles_line(file: SharedFile) -> str:
    return "f /%s %04o root %s -" % (file.path, file.mode, file.group or "root")


def limited_folder(tenants: Sequence[VgpuTenant]) -> LimitedFolder:
    """Return the tmpfs on STATE. Its size is _MOUNT_MIB, or the least multiple of it that is twice what the files take."""
    sizes = {file.path: file.most_bytes for tenant in tenants for file in shared_files(tenant)}
    chunks = -(-2 * sum(sizes.values()) // (_MOUNT_MIB * BYTES_PER_UNIT["MiB"]))
    return LimitedFolder(
        path=STATE,
        size_mib=_MOUNT_MIB * max(1, chunks),
        most_files=65536,
        mode=0o755,
        description="Shared memory of vGPU tenants",
        comment="the tenants that gpu_layout names",
    )


def _quota(tenant: VgpuTenant, name: str) -> str:
    """0 bytes are no limit by the library, 100 percent no throttle: where MPS has the say.

    Under dmem both hold: a process outside the tenant's slice, as in a container, is bounded by nothing else.
    """
    memory = 0 if tenant.provider == MPS else tenant.memory_bytes
    percent = 100 if tenant.provider == MPS else tenant.sm_percent
    return "".join(
        [
            "# Of the tenant %s; written by openfleet.gpu, changed by gpu_layout.\n" % name,
            "version %d\n" % QUOTA_VERSION,
            "tenant %s\n" % name,
            # Programs with an older library run only under the key, and see nothing new.
            *(["counted_as %s\n" % tenant.key] if tenant.key != name else []),
            "policy %s\n" % tenant.policy,
            "priority %d\n" % tenant.priority,
            *(["managed oversubscribed\n"] if tenant.oversubscribe_managed else []),
            *(
                "gpu %s memory %d sm %d seat %d\n" % (seat.gpu_uuid, memory, percent, seat.seat)
                for seat in tenant.seats
            ),
        ]
    )


def _variables(tenant: VgpuTenant, name: str) -> dict[str, str]:
    """What a process of the tenant has in its environment, in a container too.

    A client of MPS asks for its caps itself: https://docs.nvidia.com/deploy/mps/ (Environment Variables). It counts the devices
    that it sees, which is one.
    """
    variables = {"OPENFLEET_VGPU": name, "CUDA_VISIBLE_DEVICES": ",".join(tenant.gpus)}
    if tenant.provider == MPS:
        variables[PIPE_DIRECTORY] = pipe_directory(daemon_of(tenant.gpus[0]))
        variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(tenant.sm_percent)
        variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "0=%dM" % (tenant.memory_bytes // BYTES_PER_UNIT["MiB"])
    return variables


def _environment(tenant: VgpuTenant, name: str) -> str:
    variables = _variables(tenant, name)
    if tenant.provider != MPS:
        variables["LD_PRELOAD"] = "/" + LIBRARY
    comment = "# For processes of the tenant %s, as EnvironmentFile= or --env-file; written by openfleet.gpu.\n"
    return comment % name + "".join("%s=%s\n" % item for item in variables.items())


def _drop_in(tenant: VgpuTenant, name: str) -> str:
    lines = [
        "# Makes a service a process of the tenant %s, as a link in its NAME.service.d; written by openfleet.gpu."
        % name,
        "[Service]",
        "EnvironmentFile=/%s/env" % folder(name),
        # Under ProtectSystem=strict the region could not be written.
        "ReadWritePaths=-/%s" % STATE,
    ]
    if tenant.group is not None:
        lines.append("SupplementaryGroups=%s" % tenant.group)
    if tenant.provider == DMEM:
        lines.append("Slice=%s" % slice_of(tenant.key))
    return "".join(line + "\n" for line in lines)


def _cdi(tenant: VgpuTenant, name: str, driver: str | None) -> dict[str, Any]:
    """What makes a container's processes the tenant's; the GPU itself is another device, nvidia.com/gpu=UUID.

    https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md. What is read comes as directories, so that a file
    that is replaced is seen inside; what is written comes file by file, so that nothing can be put beside or in place of it.
    """
    edits = {
        "env": ["%s=%s" % item for item in _variables(tenant, name).items()],
        "mounts": client_mounts(daemon_of(tenant.gpus[0])) if tenant.provider == MPS else _mounts(tenant, name, driver),
    }
    return cdi_spec.device(CDI_KIND, name, edits)


def _mounts(tenant: VgpuTenant, name: str, driver: str | None) -> list[dict[str, Any]]:
    read, write = (["bind", mode, "nosuid", "nodev"] for mode in ("ro", "rw"))
    mounts = [
        ("/" + PROGRAMS, "/" + PROGRAMS, read),
        ("/" + folder(name), "/" + folder(name), [*read, "noexec"]),
        ("/" + PRELOAD_LIST, "/etc/ld.so.preload", [*read, "noexec"]),
        # The folder, for an agent that starts again makes its socket again. A socket that can only be read can be connected to.
        ("/" + agent_folder(tenant.key), "/" + agent_folder(tenant.key), [*read, "noexec"]),
        *(("/" + file.path, "/" + file.path, [*write, "noexec"]) for file in shared_files(tenant)),
    ]
    if driver is not None:
        mounts.append(("/" + FRONT_CONF, "/" + FRONT_CONF_INSIDE, [*read, "noexec"]))
        # By the name that the host's driver has in each version: the engine follows it to the file when a container starts.
        mounts.append(("/" + driver, "/" + DRIVER_INSIDE, read))
    return [{"hostPath": host, "containerPath": inside, "options": options} for host, inside, options in mounts]


def _json(data: Any) -> str:
    return json.dumps(data, indent=1) + "\n"
