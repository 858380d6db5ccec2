# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find a process's unit, container, job and pod from its cgroup path.

The path is parsed from the top, as in systemd, because only root can create cgroups at the top of the hierarchy. Below
a unit or user manager with delegation, processes choose the names: any service may create a cgroup named
postgresql.service.
"""

from __future__ import annotations

import re
from typing import Iterator, Sequence

from ..frozen import frozen

_ID = r"(?P<id>[0-9a-f]{64})"
#: The systemd scope of a container, or the container's cgroup if the runtime does not use systemd.
_CONTAINER = re.compile(r"(?:(?P<runtime>docker|libpod|crio|cri-containerd|nerdctl)-)?%s(?:\.scope)?$" % _ID)
_RUNTIMES = {"libpod": "podman", "cri-containerd": "containerd", "crio": "cri-o"}
#: Top cgroups in which runtimes without systemd create containers.
_PARENTS = ("docker", "lxc", "libpod_parent")
_NAMED = re.compile(r"(?:lxc\.payload\.|systemd-nspawn@|machine-)(?P<name>.+?)(?:\.service|\.scope)?$")
_UNIT = re.compile(r".+\.(?:service|scope)$")
_USER_MANAGER = re.compile(r"user@(\d+)\.service$")
#: Cgroups of Slurm jobs: the scope of each slurmd, or Slurm's hierarchy in cgroup v1
#: (https://slurm.schedmd.com/cgroup_v2.html, "Slurm cgroup v2 hierarchy").
_SLURM = re.compile(r"(?:.+_)?slurmstepd\.scope$|slurm(?:_.+)?$")
_JOB = re.compile(r"job_(\d+)$")
#: A pod's cgroup is named pod<uid>. The systemd driver replaces the dashes in the uid with underscores.
_KUBEPODS = re.compile(r"(?:.+-)?kubepods(?:\.slice)?$")
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})(?:\.slice)?$")


@frozen
class Origin:
    """The unit, container, job and pod of a process."""

    unit_or_container: str | None = None
    container_id: str | None = None
    job: str | None = None
    pod: str | None = None


def parse_cgroup(text: str, inside: str | None = None) -> Origin:
    """Return the unit, container, Slurm job and pod of a process.

    `text` is the content of /proc/PID/cgroup, for cgroup v1, v2 or both. `inside` is the id of the container in which
    the caller runs, or None. A process in this container counts as a process of the host.

    All processes that a user's systemd started have the unit user@UID.service. The runtime of a user's container
    includes the UID (podman@1000), because the system may have a container with the same name.
    """
    if inside:
        # Remove only the first occurrence of the caller's container, because users can choose names below it.
        text = re.sub(r"(?m)^([^/\n]*)/[^\n]*?%s[^/\n]*" % re.escape(inside), r"\1", text)
    origins = [_origin(components) for components in _paths(text)]

    def first(name: str) -> str | None:
        return next((value for value in (getattr(origin, name) for origin in origins) if value), None)

    # With cgroup v1, the hierarchy of systemd sometimes does not show the container. Search all hierarchies for it.
    contained = [origin for origin in origins if origin.container_id]
    name = contained[0].unit_or_container if contained else first("unit_or_container")
    return Origin(name, first("container_id"), first("job"), first("pod"))


def _paths(text: str) -> Iterator[list[str]]:
    """Yield the components of the path in each hierarchy.

    systemd's hierarchy comes first, because only it names units. Lines are split only at line feeds, because a name may
    contain other characters at which splitlines() splits.
    """
    lines = [line.split(":", 2) for line in text.split("\n") if line.count(":") >= 2]
    for _number, _controllers, path in sorted(lines, key=lambda line: line[1] not in ("", "name=systemd")):
        yield [component for component in path.split("/") if component]


def _origin(path: Sequence[str]) -> Origin:
    depth = 0
    while depth < len(path) and path[depth].endswith(".slice"):
        depth += 1
    slices, below = path[:depth], path[depth:]
    top = below[0] if below else ""
    # Without systemd, the kubelet's top cgroup may have any name (--cgroup-root).
    plain = below[: 1 if _UNIT.match(top) else 2]
    if any(map(_KUBEPODS.match, [*slices, *plain])):
        return _of_pod(path)
    manager = _USER_MANAGER.match(top)
    if manager:
        # All cgroups below this one belong to one user, whatever their names are.
        return _of_user(manager.group(1), below)
    if _SLURM.match(top):
        job = next((match.group(1) for match in map(_JOB.match, below[1:3]) if match), None)
        return Origin(top if _UNIT.match(top) else None, job=job)
    candidates = below[1:2] if top in _PARENTS else below[:1]
    for component in candidates:
        container, named = _CONTAINER.match(component), _NAMED.match(component)
        if container:
            return Origin(_container(container, top), container.group("id"))
        if named or top == "lxc":
            name = named.group("name") if named else component
            return Origin("container %s" % name, name)
    known = _UNIT.match(top) and not top.startswith(("init.scope", "session-"))
    return Origin(top if known else None)


def _of_pod(path: Sequence[str]) -> Origin:
    pod = next((match.group(1) for match in map(_POD.search, path) if match), None)
    container = next((match for match in map(_CONTAINER.match, path) if match), None)
    return Origin(
        _container(container) if container else None,
        container.group("id") if container else None,
        pod=pod.replace("_", "-") if pod else None,
    )


def _of_user(uid: str, below: Sequence[str]) -> Origin:
    container = next((match for match in map(_CONTAINER.match, below) if match), None)
    if container is None:
        return Origin("user@%s.service" % uid)
    return Origin(_container(container, owner="@" + uid), container.group("id"))


def _container(match: re.Match[str], parent: str = "", owner: str = "") -> str:
    runtime = match.group("runtime") or (parent if parent in ("docker", "lxc") else "")
    return ("%s container %s" % (_RUNTIMES.get(runtime, runtime) + owner, match.group("id")[:12])).strip()
