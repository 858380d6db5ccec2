# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what started a process from the path of its cgroup, as systemd does: from the top, and no further than is certain.

The kernel keeps /proc/PID/cgroup, and root alone arranges the top of the hierarchy. Below a unit or a user's manager to which
a part of it was delegated, names are chosen by what runs there: a service may call a cgroup of its own postgresql.service.
"""

from __future__ import annotations

import re
from typing import Iterator, Sequence

from ..frozen import frozen

_ID = r"(?P<id>[0-9a-f]{64})"
#: A container's scope by systemd, and its plain cgroup by another cgroup driver.
_CONTAINER = re.compile(r"(?:(?P<runtime>docker|libpod|crio|cri-containerd|nerdctl)-)?%s(?:\.scope)?$" % _ID)
_RUNTIMES = {"libpod": "podman", "cri-containerd": "containerd", "crio": "cri-o"}
#: The top cgroups under which a runtime without systemd puts containers.
_PARENTS = ("docker", "lxc", "libpod_parent")
_NAMED = re.compile(r"(?:lxc\.payload\.|systemd-nspawn@|machine-)(?P<name>.+?)(?:\.service|\.scope)?$")
_UNIT = re.compile(r".+\.(?:service|scope)$")
_USER_MANAGER = re.compile(r"user@(\d+)\.service$")
#: Where slurmstepd puts jobs: its scope, one for each slurmd of a machine, or a hierarchy of cgroup v1
#: (https://slurm.schedmd.com/cgroup_v2.html, "Slurm cgroup v2 hierarchy").
_SLURM = re.compile(r"(?:.+_)?slurmstepd\.scope$|slurm(?:_.+)?$")
_JOB = re.compile(r"job_(\d+)$")
#: Kubernetes puts a pod's cgroup as pod<uid>; the systemd driver writes the uid's dashes as underscores.
_KUBEPODS = re.compile(r"(?:.+-)?kubepods(?:\.slice)?$")
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})(?:\.slice)?$")


@frozen
class Origin:
    """What started a process, as far as its cgroup tells."""

    unit_or_container: str | None = None
    container_id: str | None = None
    job: str | None = None
    pod: str | None = None


def parse_cgroup(text: str, inside: str | None = None) -> Origin:
    """Return unit, container, Slurm job and pod from /proc/PID/cgroup, on cgroup v1, v2 and both.

    `inside` is the id of the container that the caller runs in itself: that one is the host, and says nothing. Of what a user's
    own systemd started only that is told, as user@UID.service: a unit of the same name that the system has is another. The
    runtime of a user's container is told with the UID, as podman@1000, for the same reason.
    """
    if inside:
        # The first of that name: those below it are others' to choose.
        text = re.sub(r"(?m)^([^/\n]*)/[^\n]*?%s[^/\n]*" % re.escape(inside), r"\1", text)
    origins = [_origin(components) for components in _paths(text)]

    def first(name: str) -> str | None:
        return next((value for value in (getattr(origin, name) for origin in origins) if value), None)

    # A container is what it is in any hierarchy; with cgroup v1 systemd's own may know nothing of it.
    contained = [origin for origin in origins if origin.container_id]
    what = contained[0].unit_or_container if contained else first("unit_or_container")
    return Origin(what, first("container_id"), first("job"), first("pod"))


def _paths(text: str) -> Iterator[list[str]]:
    """The components of each hierarchy's path, systemd's first: it alone names units.

    A name may have any character but a line feed, those too that splitlines() takes for the end of a line.
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
    # Without systemd the kubelet has a cgroup of its own at the top, which may be named (--cgroup-root).
    plain = below[: 1 if _UNIT.match(top) else 2]
    if any(map(_KUBEPODS.match, [*slices, *plain])):
        return _of_pod(path)
    manager = _USER_MANAGER.match(top)
    if manager:
        # All below is one user's: whatever it is called there is that user's too.
        return _of_user(manager.group(1), below)
    if _SLURM.match(top):
        job = next((found.group(1) for found in map(_JOB.match, below[1:3]) if found), None)
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
    pod = next((found.group(1) for found in map(_POD.search, path) if found), None)
    container = next((found for found in map(_CONTAINER.match, path) if found), None)
    return Origin(
        _container(container) if container else None,
        container.group("id") if container else None,
        pod=pod.replace("_", "-") if pod else None,
    )


def _of_user(uid: str, below: Sequence[str]) -> Origin:
    container = next((found for found in map(_CONTAINER.match, below) if found), None)
    if container is None:
        return Origin("user@%s.service" % uid)
    return Origin(_container(container, owner="@" + uid), container.group("id"))


def _container(found: re.Match[str], parent: str = "", owner: str = "") -> str:
    runtime = found.group("runtime") or (parent if parent in ("docker", "lxc") else "")
    return ("%s container %s" % (_RUNTIMES.get(runtime, runtime) + owner, found.group("id")[:12])).strip()
