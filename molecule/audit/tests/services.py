# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services of the fleet of this scenario, their GPU use and their hosts, as systemd units."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from nvidia_smi import Gpu, read_gpus
from recorded_history import Use


@dataclass(frozen=True)
class Service:
    """A unit, where it begins (host, GPU, first memory slice of its instance or None), what it uses, and whose it is."""

    name: str
    host: str
    gpu: int
    start: int | None
    use: Use
    user: str = "root"


SERVICES = [
    # Far too small for a whole H100, and well used, in that order. GPU 3 of the host is unused.
    Service("chat", "hopper", 0, None, Use((6, 7), (0.02, 0.11))),
    Service("search", "hopper", 1, None, Use((12, 14), (0.05, 0.22))),
    Service("train", "hopper", 2, None, Use((50, 65), (0.5, 0.8))),
    # Of each GPU one instance of two, and well used.
    Service("embed", "slices", 0, 0, Use((24, 30), (0.2, 0.35))),
    Service("rank", "slices", 1, 0, Use((24, 30), (0.2, 0.35))),
    # More than its GPU can give.
    Service("render", "ada", 0, None, Use((40, 43.5), (0.7, 0.97))),
]
#: Processes that do nothing, of services that are installed, enabled and restarted when they end. One is not to be stopped.
#: The other is of an account that may do nothing (prepare.yml).
DRAFT = Service("draft", "ada", 2, None, Use((2, 2), (0, 0)), "gpu-audit")
BILLING = Service("billing", "ada", 3, None, Use((2, 2), (0, 0)))
#: A container that was given a GPU and runs nothing on it.
CONTAINER = Service("notebook", "ada", 1, None, Use((0, 0), (0, 0), processes=0))


def gpus(host: Any) -> list[Gpu]:
    def run(command: str) -> tuple[int, str]:
        done = host.run(command)
        return done.rc, done.stdout + done.stderr

    return read_gpus(run)


def start(service: Service, host: Any, gpu: int, first_slice: int | None) -> tuple[str, str]:
    """Starts it there; gives the UUID of the GPU and the id of the instance, or "". The program runs once this returns."""
    found = gpus(host)[gpu]
    where, instance = "--gpu %d" % gpu, ""
    if first_slice is not None:
        ((number, _one),) = [(n, one) for n, one in found.instances.items() if one.start == first_slice]
        where, instance = "%s --gi %d --ci 0" % (where, number), str(number)
    _transient(host, service.name, _program(service, where))
    return found.uuid, instance


def install(service: Service, host: Any) -> tuple[str, str]:
    """Return the unit of a service on a whole GPU, with a separate file in systemd's directory."""
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
    """Create what a container runtime makes for a container with a GPU: a /dev with the unopened node."""
    inside = "mount -t tmpfs tmpfs /dev && touch /dev/nvidia%d && exec sleep infinity" % service.gpu
    _transient(host, service.name, "unshare --mount sh -c %s" % shlex.quote(inside))
    return gpus(host)[service.gpu].uuid, ""


def stop(service: Service, host: Any) -> None:
    host.check_output("systemctl stop %s", service.name)


def _transient(host: Any, name: str, program: str) -> None:
    host.check_output(f"systemd-run --quiet --collect --unit={name} {program}")
    _runs(host, name)


def _runs(host: Any, name: str) -> None:
    """Waits until it has become what it runs."""
    host.check_output(
        f'timeout 300 sh -c \'until [ "$(cat /proc/$(systemctl show --property=MainPID --value {name})/comm)" = sleep ];'
        " do sleep 0.1; done'"
    )


def pid(service: Service, host: Any) -> str:
    """The pid of its program, while that runs."""
    found = host.check_output("systemctl show --property=MainPID --value %s", service.name)
    return found if host.run("kill -0 %s", found).rc == 0 else "none: it does not run"
