# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define the services of the scenario's fleet, and run them as systemd units."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from tests.lab.nvidia_smi import Gpu, read_gpus
from tests.lab.recorded_history import Use


@dataclass(frozen=True)
class Service:
    """A systemd unit: its location, its GPU use and its owner.

    The location consists of a host, a GPU, and the first memory slice of an instance. For a whole GPU, the slice is
    None.
    """

    name: str
    host: str
    gpu: int
    start: int | None
    use: Use
    user: str = "root"


SERVICES = [
    # The first two services need only a small part of an H100. The third service uses its H100 well. GPU 3 of the host
    # is unused.
    Service("chat", "hopper", 0, None, Use((6, 7), (0.02, 0.11))),
    Service("search", "hopper", 1, None, Use((12, 14), (0.05, 0.22))),
    Service("train", "hopper", 2, None, Use((50, 65), (0.5, 0.8))),
    # Each of these services uses one of a GPU's two instances, and uses it well.
    Service("embed", "slices", 0, 0, Use((24, 30), (0.2, 0.35))),
    Service("rank", "slices", 1, 0, Use((24, 30), (0.2, 0.35))),
    # This service needs more than its GPU can provide.
    Service("render", "ada", 0, None, Use((40, 43.5), (0.7, 0.97))),
]
#: Idle services. Their units are enabled, and systemd restarts them when they end. rightsize.yml must not stop BILLING.
#: DRAFT runs as an account without permissions (prepare.yml).
DRAFT = Service("draft", "ada", 2, None, Use((2, 2), (0, 0)), "gpu-audit")
BILLING = Service("billing", "ada", 3, None, Use((2, 2), (0, 0)))
#: A container that has a GPU but runs no program on it.
CONTAINER = Service("notebook", "ada", 1, None, Use((0, 0), (0, 0), processes=0))


def gpus(host: Any) -> list[Gpu]:
    def run(command: str) -> tuple[int, str]:
        done = host.run(command)
        return done.rc, done.stdout + done.stderr

    return read_gpus(run)


def start(service: Service, host: Any, gpu: int, first_slice: int | None) -> tuple[str, str]:
    """Start a service, and return the GPU's UUID and the instance's id or "".

    The program is running when this function returns.
    """
    found = gpus(host)[gpu]
    where, instance = "--gpu %d" % gpu, ""
    if first_slice is not None:
        ((number, _one),) = [(n, one) for n, one in found.instances.items() if one.start == first_slice]
        where, instance = "%s --gi %d --ci 0" % (where, number), str(number)
    _transient(host, service.name, _program(service, where))
    return found.uuid, instance


def install(service: Service, host: Any) -> tuple[str, str]:
    """Install a service on a whole GPU as a permanent unit, and start it.

    Returns the GPU's UUID and "", because a whole GPU has no instance id.
    """
    host.check_output(
        "printf '%%s\\n' '[Service]' %s User=%s Restart=always '[Install]' WantedBy=multi-user.target "
        ">/etc/systemd/system/%s.service && systemctl daemon-reload && systemctl enable --quiet --now %s"
        % (
            shlex.quote("ExecStart=" + _program(service, "--gpu %d" % service.gpu)),
            service.user,
            service.name,
            service.name,
        )
    )
    _runs(host, service.name)
    return gpus(host)[service.gpu].uuid, ""


def _program(service: Service, where: str) -> str:
    return "gpusim run %s --memory %dMiB -- sleep infinity" % (where, service.use.memory_gib[0] * 1024)


def start_container(service: Service, host: Any) -> tuple[str, str]:
    """Start a unit that looks like a container with a GPU.

    Its /dev has the GPU's node, which no process has open.
    """
    inside = "mount -t tmpfs tmpfs /dev && touch /dev/nvidia%d && exec sleep infinity" % service.gpu
    _transient(host, service.name, "unshare --mount sh -c %s" % shlex.quote(inside))
    return gpus(host)[service.gpu].uuid, ""


def stop(service: Service, host: Any) -> None:
    host.check_output("systemctl stop %s", service.name)


def _transient(host: Any, name: str, program: str) -> None:
    host.check_output(f"systemd-run --quiet --collect --unit={name} {program}")
    _runs(host, name)


def _runs(host: Any, name: str) -> None:
    """Wait until the unit runs its final program."""
    host.check_output(
        f'timeout 300 sh -c \'until [ "$(cat /proc/$(systemctl show --property=MainPID --value {name})/comm)" = sleep ];'
        " do sleep 0.1; done'"
    )


def pid(service: Service, host: Any) -> str:
    """Return the pid of the service's program, if the program runs."""
    found = host.check_output("systemctl show --property=MainPID --value %s", service.name)
    return found if host.run("kill -0 %s", found).rc == 0 else "none: it is not running"
