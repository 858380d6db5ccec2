# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that all reads of huge or blocking process files have documented limits.

The test searches the syntax trees for texts that name such a file of /proc/PID. It fails for a new read until the table
lists the read with its limit.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[4] / "plugins" / "module_utils"
#: The process itself controls the size of these files: open files, mappings, its memory, paths through its root, and
#: mounts.
UNBOUNDED = re.compile(r"(?:^|/)(?:fd|maps|map_files|smaps|environ|cmdline|mem|mountinfo|cwd|exe)(?:/|$)|/root(?:/|%s)")
CHILD = "asked in a child, which is left behind where it does not answer (file_worker, bounded)"
DEADLINE = "ends at a deadline, or after so many"
SIZE = "no more than so many letters"
LINK = "where a link leads, by the kernel's word; it is not followed"
OWN = "of this process"
PLACES = {
    "holders.bare_handles._has_open": CHILD,
    "processes.child_process._close_all": OWN,
    "holders.containers._given": CHILD,
    "holders.containers._has_driver": SIZE,
    "holders.hidden_files._devices_of": CHILD,
    "holders.hidden_files._has_memory": LINK,
    "holders.hidden_files._mapped": CHILD,
    "holders.hidden_files._may_follow": OWN,
    "holders.hidden_files.has_mapped_node": CHILD,
    "holders.mps._open_devices": CHILD,
    "holders.mps._pipe_directory": CHILD,
    "holders.processes.Processes.environment": CHILD,
    "holders.processes._Scan._see": DEADLINE,
    "holders.processes._arguments": CHILD,
    "holders.processes.executable_of": LINK,
    "holders.sockets._SocketReading._inodes_of": DEADLINE,
    "holders.watchers._executes_the_hosts_own": CHILD,
    "install.installed.open_code": OWN,
    "install.vgpu_limiter._mapped": CHILD,
    "holders.open_files.RemoteMounts.of": SIZE,
    "holders.open_files._place": "part of a path, of which nothing is read",
    "holders.open_files.info_of": "one open file, as the kernel describes it",
    "kubernetes.kubelet_config.read_kubelet": SIZE,
    "processes.peer.Process.executable": LINK,
    "processes.peer.Process.sockets": DEADLINE,
    "reclaim.tell._replace": OWN,
    "systemd_reload._has_gpu": DEADLINE,
    "techniques.mps.observe.Daemons._replaced": LINK,
    "techniques.vgpu.agent_client.socket_folder": OWN,
    "techniques.vgpu.agent_memory.Memory.adopt": OWN,
    "techniques.vgpu.identity.Identities._host_mounts": SIZE,
    "techniques.vgpu.identity.Identities._names": CHILD,
}


def places() -> set[str]:
    """Return the functions, by module, in whose code the file name occurs."""
    found = set()
    for path in sorted(ROOT.rglob("*.py")):
        module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        _collect(ast.parse(path.read_text(encoding="utf-8")), module, found)
    return found


def _collect(node: ast.AST, where: str, found: set[str]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            _collect(child, "%s.%s" % (where, child.name), found)
        elif isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        else:
            if isinstance(child, ast.Constant) and isinstance(child.value, str) and UNBOUNDED.search(child.value):
                found.add(where)
            _collect(child, where, found)


def test_each_unlimited_file_of_a_process_is_read_with_a_limit():
    assert sorted(places()) == sorted(PLACES)
