# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test processes that claim another tenant's quota.

The processes use mounts, chroot or environment variables.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.agent_nvml import Processes
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu.model import SETTINGS, VgpuSeat, VgpuTenant
from tests.adversary.attackers import ALICE, process, public_folder
from tests.integration import cgroups

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts containers")

UUID = "GPU-5c890000-0000-4000-8000-000000000001"
TENANTS = [VgpuTenant(name, 1 << 30, 50, (VgpuSeat(UUID, seat),)) for seat, name in enumerate(("own", "victim"))]
WAIT = "echo open; read _"
# Root's containers: one with its own PID namespace, and one without (as with an engine's --pid=host).
CONTAINERS = {
    "container": ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"],
    "container of the host's PIDs": ["unshare", "--mount"],
}
ROOTLESS = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
# Mounts a tenant's folder as an engine does. $1 is the folder of the host's tenants.
ENGINE = "mount -nt tmpfs none /etc; mkdir -p /%s/{name}; mount -n --bind $1/{name} /%s/{name}" % (SETTINGS, SETTINGS)
EMPTY = "mkdir -p /%s/victim; mount -nt tmpfs none /%s/victim" % (SETTINGS, SETTINGS)
FORGE = "mkdir -p /%s/victim; mount -n --bind {source} /%s/victim" % (SETTINGS, SETTINGS)


@pytest.fixture
def root():
    """Return the host's root folder, which has the quota folders of both tenants."""
    with public_folder() as folder:
        for tenant in TENANTS:
            (folder / SETTINGS / tenant.name).mkdir(parents=True)
        yield folder


def innermost(pid: int) -> int:
    """Return the pid of the last process in a chain of forks."""
    children = Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()
    return innermost(int(children[0])) if children else pid


def tenant_of(root: Path, pid: int) -> str | None:
    found = Processes(root).of([pid], TENANTS)
    return found[pid].key if pid in found else None


@contextlib.contextmanager
def running(root: Path, script: str, within: list[str], user: int = 0, **variables: str):
    """Run a script in a container, and yield the pid of its innermost process."""
    with process(*within, "sh", "-ec", script, "sh", str(root / SETTINGS), user=user, **variables) as made:
        yield innermost(made.pid)


def nested(command: str, script: str) -> str:
    return ENGINE.format(name="own") + "\nexec %s sh -ec '%s\n%s' sh $1" % (command, script, WAIT)


@pytest.mark.parametrize("within", CONTAINERS.values(), ids=CONTAINERS)
def test_tenant_of_a_container_is_the_one_its_engine_mounted(root, within):
    with running(root, ENGINE.format(name="own") + "\n" + WAIT, within, OPENFLEET_VGPU="victim") as pid:
        assert tenant_of(root, pid) == "own"


# A tmpfs over the parent folder hides the engine's mounts, but /proc/PID/mountinfo still lists them.
HIDE = "mount -nt tmpfs none /etc; "
# Switches to a new root that has none of the engine's mounts.
PIVOT = """mount -nt tmpfs none /mnt; mkdir /mnt/old /mnt/proc; mount -n --rbind /proc /mnt/proc
    for d in bin lib lib64 usr; do [ ! -e /$d ] || { mkdir /mnt/$d; mount -n --rbind /$d /mnt/$d; }; done
    mkdir -p /mnt/%s/victim; mount -n --bind $1/victim /mnt/%s/victim
    cd /mnt; pivot_root . old; umount -nl /old""" % (SETTINGS, SETTINGS)
ATTACKS = {
    "the folder itself": FORGE.format(source="$1/victim"),
    "its own folder": FORGE.format(source="$1/own"),
    "an empty folder": HIDE + EMPTY,
    "the folder itself above the engine's": HIDE + FORGE.format(source="$1/victim"),
    "another root": PIVOT,
    "another root and the variable": PIVOT.replace("mount -n --bind $1/victim", ": mount"),
}
NESTED = {
    "user namespace": "unshare --user --map-root-user --mount",
    "user and PID namespace": "unshare --user --map-root-user --mount --pid --fork --kill-child",
    "two user namespaces": "unshare --user --map-root-user unshare --user --map-root-user --mount",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("command", NESTED.values(), ids=NESTED)
@pytest.mark.parametrize("within", CONTAINERS.values(), ids=CONTAINERS)
def test_mounts_of_a_nested_namespace_cannot_select_another_tenant(root, within, command, attack):
    """Count the process for its own container's tenant or for none.

    Otherwise its memory would use the victim's quota.
    """
    with running(root, nested(command, attack), within, OPENFLEET_VGPU="victim") as pid:
        assert tenant_of(root, pid) in ("own", None)


def test_sandbox_in_a_container_counts_for_the_containers_tenant(root):
    """Charge a sandbox's memory to the tenant of its container.

    Browsers and build tools nest namespaces for good reasons, and the tenant pays for their memory.
    """
    script = "%s\n%s & \nread _" % (
        ENGINE.format(name="own"),
        "unshare --user --map-root-user --mount sh -ec '%s'" % WAIT,
    )
    with running(root, script.replace("read _'", "exec sleep 600'"), CONTAINERS["container"]) as pid:
        assert Path("/proc/%d/ns/user" % pid).readlink() != Path("/proc/self/ns/user").readlink()
        assert tenant_of(root, pid) == "own"


def test_chroot_hides_no_mount_of_the_engine(root):
    """Find the engine's mount despite chroot.

    Engines leave CAP_SYS_CHROOT to root in containers.
    """
    chroot = (
        """mkdir /mnt/x; mount -n --bind / /mnt/x 2>/dev/null || true
    exec chroot /mnt/x sh -ec '%s'"""
        % WAIT
    )
    with running(root, ENGINE.format(name="own") + "\nmount -nt tmpfs none /mnt\n" + chroot, CONTAINERS["container"],
                 OPENFLEET_VGPU="victim") as pid:  # fmt: skip
        assert Path("/proc/%d/root" % pid).readlink() != Path("/")
        assert tenant_of(root, pid) in ("own", None)


def test_variable_selects_no_tenant_without_its_folder_in_the_container(root):
    script = "mount -nt tmpfs none %s\n%s" % (root, WAIT)
    with running(root, script, CONTAINERS["container"], OPENFLEET_VGPU="victim") as pid:
        assert tenant_of(root, pid) is None
    with running(root, WAIT, CONTAINERS["container"], OPENFLEET_VGPU="own") as pid:
        assert tenant_of(root, pid) == "own", "as in a service with PrivateTmp=yes, which has the host's files"


def test_rootless_engine_selects_the_tenant_it_mounts(root):
    with running(root, ENGINE.format(name="own") + "\n" + WAIT, ROOTLESS, user=ALICE) as pid:
        assert tenant_of(root, pid) == "own"
    made_up = HIDE + EMPTY + "\n" + WAIT
    with running(root, made_up, ROOTLESS, user=ALICE, OPENFLEET_VGPU="victim") as pid:
        assert tenant_of(root, pid) is None


def test_user_in_a_container_of_root_has_no_engine(root):
    """Check that a user's container inside a container of root has no engine.

    The outer container is recognized by the cgroup, which a process in it cannot leave.
    """
    with contextlib.ExitStack() as ending:
        try:
            scope = ending.enter_context(cgroups.made("system.slice", "docker-%s.scope" % ("ab" * 32)))
        except OSError as error:
            pytest.skip("no cgroups can be made here: %s" % error)
        script = "echo $$ >$2/cgroup.procs; exec setpriv --reuid %d --clear-groups %s sh -ec '%s\n%s' sh $1" % (
            ALICE, " ".join(ROOTLESS[:-1]), ENGINE.format(name="victim"), WAIT)  # fmt: skip
        command = [*CONTAINERS["container of the host's PIDs"], "sh", "-ec", script, "sh", root / SETTINGS, scope]
        with process(*command, user=0) as made:
            pid = innermost(made.pid)
            if "docker-" not in Path("/proc/%d/cgroup" % pid).read_text():
                pytest.skip("the cgroups of this machine are below another's")
            assert tenant_of(root, pid) is None
