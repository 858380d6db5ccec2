# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a /dev that tenants or users arrange holds no GPU.

The container must not pose as another container either. The namespaces and device nodes are real. A folder shows the
host's /proc with a driver.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders import containers as holders_containers
from ansible_collections.openfleet.gpu.plugins.module_utils.holders.find import find_holders
from ansible_collections.openfleet.gpu.plugins.module_utils.processes import file_worker
from tests.adversary.attackers import ALICE, BOB, HOLD, Window, gpu, holding, host, named, process, public_folder
from tests.integration import cgroups

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes containers and device nodes")

#: Commands that start a container in its own mount namespace. A user can do this only in a user namespace.
CONTAINER, OWN_CONTAINER = ["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]
WAIT = "echo open; read _"


@pytest.fixture
def folder():
    with public_folder() as made:
        (made / "dev").mkdir()
        yield made


@pytest.fixture
def node(folder):
    """Create the host's node of the first GPU, which only root can open."""
    path = folder / "dev/nvidia0"
    os.mknod(path, 0o20600, os.makedev(195, 0))
    return path


def container(script: str, *arguments: object, user: int = 0, within=CONTAINER):
    """Start a container whose first process is a shell that runs the script.

    Then the shell prints `open` and waits.
    """
    return process(*within, "sh", "-ec", script + "\n" + WAIT, "sh", *arguments, user=user)


def look(folder, *processes):
    window = Window(folder / "proc", *processes)

    def never(command, **_options):
        raise AssertionError("a tenant had root run %s" % command)

    return list(find_holders(host(gpu(0)), str(window.folder), str(folder / "dev"), never, "/none"))


def may_make_namespaces() -> bool:
    with contextlib.suppress(AssertionError), container(":", user=ALICE, within=OWN_CONTAINER):
        return True
    return False


users_namespaces = pytest.mark.skipif(
    os.geteuid() == 0 and not may_make_namespaces(), reason="users make no namespaces here"
)


def test_container_with_a_gpu_from_root_holds_it(folder, node):
    give = "mount -nt tmpfs none /dev\nmknod /dev/nvidia0 c 195 0"
    with container(give) as made:
        (holder,) = look(folder, made)
        assert (holder.kind, holder.pid, holder.gpu_uuid) == ("container", made.pid, "GPU-0")


@users_namespaces
@pytest.mark.parametrize("mode", ["0600", "0666"])
def test_rootless_container_holds_what_its_user_may_open(folder, node, mode):
    """Count what the user may open.

    Rootless engines mount devices, and mounting needs no permission for the node.
    """
    node.chmod(int(mode, 8))
    give = "mount -nt tmpfs none /mnt\ntouch /mnt/nvidia0\nmount -n --bind $1 /mnt/nvidia0\nmount -n --move /mnt /dev"
    with container(give, node, user=ALICE, within=OWN_CONTAINER) as made:
        assert [(h.kind, h.user) for h in look(folder, made)] == ([("container", str(ALICE))] if mode == "0666" else [])


@users_namespaces
@pytest.mark.parametrize(
    "arrange",
    [
        "mount -nt tmpfs none /dev\ntouch /dev/nvidia0",
        "mount -nt tmpfs none /dev\nln -s $1 /dev/nvidia0",
        "mount -nt tmpfs none /dev\nmkdir /dev/nvidia0",
        "mount -nt tmpfs none /dev\nmkfifo /dev/nvidia0",
    ],
    ids=["a file", "a link", "a folder", "a pipe"],
)
def test_file_with_the_name_of_a_node_holds_nothing(folder, node, arrange):
    with container(arrange, node, user=ALICE, within=OWN_CONTAINER) as made:
        assert look(folder, made) == []


@users_namespaces
@pytest.mark.parametrize("leads_to", ["dev", "/", "/proc/{other}/root/dev", "{host}", "/dev/../../{host}"])
def test_dev_that_is_a_link_is_not_followed(folder, node, leads_to):
    """Do not follow a link in the container.

    Root would follow the link from the host's root: to another tenant's devices, to a hanging share, or to itself.
    """
    node.chmod(0o666)
    with container("mount -nt tmpfs none /dev\nmknod /dev/nvidia0 c 195 0") as other:
        target = leads_to.format(other=other.pid, host=folder / "dev")
        enter = "\n".join(
            [
                "mount -nt tmpfs none /mnt",
                "ln -s $1 /mnt/dev",
                "for d in bin lib lib64 usr; do",
                "  [ ! -e /$d ] || { mkdir /mnt/$d; mount -n --rbind /$d /mnt/$d; }",
                "done",
                "exec chroot /mnt /bin/sh -c '%s'",
            ]
        )
        with process(*OWN_CONTAINER, "sh", "-ec", enter % WAIT, "sh", target, user=ALICE) as made:
            assert [holder.pid for holder in look(folder, made, other)] == [other.pid]


def test_dev_with_very_many_files_is_read_in_part(folder, node, monkeypatch):
    monkeypatch.setattr(holders_containers, "_MOST_NODES", 50)
    fill = "mount -nt tmpfs none /dev\nfor n in $(seq 200); do : >/dev/f$n; done\nmknod /dev/nvidia0 c 195 0"
    looked = []
    status = holders_containers._status
    monkeypatch.setattr(holders_containers, "_status", lambda path: looked.append(path) or status(path))
    with container(fill) as made:
        assert [holder.pid for holder in look(folder, made)] == [made.pid]
        assert len([path for path in looked if "/root/dev/f" in path]) <= 50


# --- Posing as another container ------------------------------------------------------------------------------------------


def test_forged_monitor_names_no_other_container(folder):
    """Do not use a process that only has the name of a container's monitor.

    Root in a container can name a process conmon. Reclaim uses the command line of conmon to stop a container.
    """
    (folder / "dev/nvidia0").touch()
    program = named(folder, "conmon")
    start = "import os, sys\nif os.fork(): sys.stdin.read()\nelse:\n    sys.argv[1:3] = []\n    " + HOLD.replace(
        "\n", "\n    "
    )
    tenant = ["unshare", "--pid", "--fork", "--kill-child"]
    with process(*tenant, program, "-c", start, "-n", "billing-api", folder / "dev/nvidia0", user=0) as made:
        found = find_holders(host(gpu(0)), dev=str(folder / "dev"), kubelet_directory="/none")
        mine = [holder for holder in found if (holder.command or "").startswith(str(program))]
        assert mine and {holder.unit_or_container for holder in mine} == {None}
        made.stdin.close()


def test_monitor_of_a_user_names_no_container_of_root(folder):
    (folder / "dev/nvidia0").touch()
    start = "import os, sys\nif os.fork(): sys.stdin.read()\nelse:\n    sys.argv[1:3] = []\n    " + HOLD.replace(
        "\n", "\n    "
    )
    program = named(folder, "conmon")
    for name, called in (("billing-api", "billing-api"), ("x\x1b[2J" + "y" * 9000, "of no name")):
        with process(program, "-c", start, "-n", name, folder / "dev/nvidia0", user=ALICE) as made:
            found = find_holders(host(gpu(0)), dev=str(folder / "dev"), kubelet_directory="/none")
            names = {holder.unit_or_container for holder in found if holder.user == str(ALICE)}
            assert names == {"podman@%d container %s" % (ALICE, called)}
            made.stdin.close()


# --- Delegated cgroups ------------------------------------------------------------------------------------------------------


@pytest.fixture
def delegated():
    """Create a service's cgroup, and delegate a part of it to the service's user.

    The cgroups are next to the cgroups of this machine's systemd.
    """
    with contextlib.ExitStack() as ending:
        try:
            top = "openfleet%d.slice" % os.getpid()
            inner = ending.enter_context(cgroups.made(top, "hub.service", "postgresql.service"))
        except OSError as error:
            pytest.skip("no cgroups can be made here: %s" % error)
        yield inner


def test_service_with_a_cgroup_named_postgresql_keeps_its_name(folder, delegated):
    (folder / "dev/nvidia0").touch()
    with holding(folder / "dev/nvidia0", user=BOB) as held:
        (delegated / "cgroup.procs").write_text(str(held.pid))
        if ":/%s\n" % "/".join(delegated.parts[-3:]) not in Path("/proc/%d/cgroup" % held.pid).read_text():
            pytest.skip("the cgroups of this machine are below another's")
        found = find_holders(host(gpu(0)), dev=str(folder / "dev"), kubelet_directory="/none")
        assert [h.unit_or_container for h in found if h.pid == held.pid] == ["hub.service"]


# --- unresponsive memory --------------------------------------------------------------------------------------------


def test_process_with_unresponsive_memory_does_not_block(folder, monkeypatch):
    """Do not wait for the arguments of a process.

    The arguments may be in the process's own unresponsive file system. Here, a pipe without a writer represents them in
    /proc.
    """
    monkeypatch.setattr(file_worker, "_SECONDS", 0.5)
    proc = folder / "proc"
    (proc / "7/fd").mkdir(parents=True)
    (folder / "dev/nvidia0").touch()
    (proc / "7/fd/3").symlink_to(folder / "dev/nvidia0")
    (proc / "7/comm").write_text("train\n")
    (proc / "7/status").write_text("Name:\ttrain\nUid:\t%d\t%d\t%d\t%d\n" % ((ALICE,) * 4))
    os.mkfifo(proc / "7/cmdline")
    (holder,) = find_holders(host(gpu(0)), str(proc), str(folder / "dev"), kubelet_directory="/none")
    assert (holder.pid, holder.user, holder.command) == (7, str(ALICE), "[train]")
