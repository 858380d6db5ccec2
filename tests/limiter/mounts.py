# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run programs in their own mount namespace, like those in containers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

from tests.limiter.limiter_lab import Client, Tenant

UNSHARE = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "--mount")


def can_mount() -> bool:
    """Return whether this user may mount, at least in a user namespace."""
    if not shutil.which("unshare"):
        return False
    done = subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return done.returncode == 0


def client_behind(tenant: Tenant, mounts: str, *, prefix: str = "", start: bool = True, **environment: str) -> Client:
    """Start a client of the tenant after the shell commands in `mounts`.

    `prefix` comes before the client's command. A variable with an empty value is removed from the environment.
    """
    variables = {key: value for key, value in tenant.environment(**environment).items() if value}
    preload, driver = variables.pop("LD_PRELOAD"), tenant.built.stub / "libcuda.so.1"
    script = Path(tenant.root) / f"start-{len(list(tenant.root.glob('start-*')))}"
    script.write_text(
        f"""#!/bin/sh -e
        test "$1" = inside || exec {" ".join(UNSHARE)} "$0" inside
        {mounts}
        LD_PRELOAD='{preload}' exec {prefix} {tenant.built.client} {driver}
        """
    )
    script.chmod(0o755)
    return Client(SimpleNamespace(client=script), variables, start)


def client_in_container(
    tenant: Tenant,
    *others: Tenant,
    start: bool = True,
    preload: bool = True,
    driver: str | None = None,
    hook: str = ":",
    **variables: str,
) -> Client:
    """Start a client whose files are at the paths that they have in a container.

    These files are /etc/ld.so.preload, the quota folder and the region. The client's environment has only `variables`
    and what the stub driver needs. The shell command `hook` runs first. Then the client opens `driver`, or by default
    the stub by its path.
    """
    preloads = tenant.environment()["LD_PRELOAD"].split() if preload else []
    mounts = ["mount -t tmpfs none /etc", "mount -t tmpfs none /run", "mkdir -p /run/openfleet-gpu/vgpu/gpus"]
    for each in (tenant, *others):
        folder, region = (Path("/") / path.relative_to(each.root) for path in (each.folder, each.region))
        mounts += [f"mkdir -p {folder} {region.parent}", f"touch {region}"]
        mounts += [f"mount --bind -o ro {each.folder} {folder}", f"mount --bind {each.region} {region}"]
    mounts += [f"echo '{path}' >>/etc/ld.so.preload" for path in preloads]
    script = Path(tenant.root) / f"container-{len(list(tenant.root.glob('container-*')))}"
    lines = "\n        ".join(mounts)
    script.write_text(
        f"""#!/bin/sh -e
        test "$1" = inside || exec {" ".join(UNSHARE)} "$0" inside
        {lines}
        {hook}
        exec {tenant.built.client} {driver or tenant.built.stub / "libcuda.so.1"}
        """
    )
    script.chmod(0o755)
    stub = {"STUB_GROUP": tenant.name, **tenant.card.environment(), "OPENFLEET_VGPU_LOG": str(tenant.log)}
    return Client(SimpleNamespace(client=script), {"PATH": os.environ["PATH"], **stub, **variables}, start)
