# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the vGPU limiter and write tenants' files, like the role vgpu_limiter.

The functions write all files to a given folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from card_program import HERE, Card, NotMeasuredError

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import files as vgpu_files
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import VgpuSeat, VgpuTenant

LIMITER = HERE.parents[1] / "roles" / "vgpu_limiter" / "files" / "src"
QUOTA_BYTES = 1 << 30


@dataclass(frozen=True)
class Tenant:
    """A tenant on one GPU.

    Tenants with the same `root` take turns on the GPU. Each of these tenants has a different `seat`.
    """

    name: str
    sm_percent: int = 100
    seat: int = 0
    root: str = ""
    memory_bytes: int = QUOTA_BYTES
    policy: str = "fixed"


def build(card: Card) -> Path:
    """Build the limiter's library with the machine's compiler, and return its path.

    Raises NotMeasuredError.
    """
    for tool in ("make", "cc"):
        if not shutil.which(tool):
            raise NotMeasuredError("the limiter cannot be built: %s is not installed" % tool)
    card.tell("building the vGPU limiter")
    folder = card.folder / "limiter"
    folder.mkdir()
    done = subprocess.run(
        ["make", "-s", "-C", str(LIMITER), "BUILD=%s" % folder],
        capture_output=True, text=True, check=False, timeout=card.timeout_seconds,
    )  # fmt: skip
    if done.returncode:
        raise NotMeasuredError("the limiter cannot be built: %s" % done.stderr[-300:])
    return folder / "libopenfleet-vgpu.so"


def environment(card: Card, library: Path, tenant: Tenant) -> dict[str, str]:
    """Write the tenant's files and return the environment of its programs."""
    top = card.folder / (tenant.root or tenant.name)
    written = VgpuTenant(
        name=tenant.name,
        memory_bytes=tenant.memory_bytes,
        sm_percent=tenant.sm_percent,
        policy=tenant.policy,
        seats=(VgpuSeat(card.uuid, tenant.seat),),
    )
    quota = vgpu_files.quota_path(tenant.name)
    _write(top / quota, vgpu_files.files(written)[quota])
    for shared in vgpu_files.shared_files(written):
        _write(top / shared.path, "")
    # With another root, the library also reads its PID namespace's number below that root.
    link = top / "proc/self/ns/pid"
    if not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path("/proc/self/ns/pid").readlink())
    return {
        "LD_PRELOAD": ":".join(filter(None, [str(library), os.environ.get("LD_PRELOAD", "")])),
        "OPENFLEET_VGPU": tenant.name,
        "OPENFLEET_VGPU_ROOT": str(top),
        "OPENFLEET_VGPU_LOG": str(top / "log"),
    }


def container_options(top: Path, uuid: str, library: Path) -> list[str]:
    """Write a tenant's files to a folder. Return the options for its container."""
    tenant = VgpuTenant("container", QUOTA_BYTES, 100, (VgpuSeat(uuid, 0),))
    own = vgpu_files.files(tenant)
    for path, text in own.items():
        _write(top / path, text)
    _write(top / vgpu_files.PRELOAD_LIST, "/%s\n" % vgpu_files.LIBRARY)
    shutil.copy(library, top / vgpu_files.LIBRARY)
    (top / vgpu_files.agent_folder(tenant.key)).mkdir(parents=True)
    for shared in vgpu_files.shared_files(tenant):
        _write(top / shared.path, "")
        (top / shared.path).chmod(shared.mode)
    (device,) = json.loads(own[vgpu_files.cdi_path("container")])["devices"]
    options = ["--device", "nvidia.com/gpu=all"]
    for variable in device["containerEdits"]["env"]:
        options += ["--env", variable]
    for mount in device["containerEdits"]["mounts"]:
        access = "ro" if "ro" in mount["options"] else "rw"
        options += ["--volume", "%s%s:%s:%s" % (top, mount["hostPath"], mount["containerPath"], access)]
    return options


def _write(path: Path, text: str) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
