# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run services on the demo's fleet, record three days, and show the audit.

The audit and the right-sizing proposal are written as pages. The services run as processes of the simulator. Their
history is made up, and the output says so.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from subprocess import CalledProcessError

from tests.lab.fleet import LAB, FleetError, play
from tests.lab.nvidia_smi import NvidiaSmiError, read_gpus
from tests.lab.prometheus import Prometheus, PrometheusError
from tests.lab.recorded_history import DAY, Place, Subject, Use, goes_on, put_into, subjects, text
from tests.lab.relay import relay
from tests.lab.verify_layout import podman_run

REPORT = LAB / "report"
PAGES = [REPORT / "audit.html", REPORT / "rightsize.html"]
SHORT = {"idle_hours": 24, "new_holder_hours": 0}
DAYS = 3
MONITOR = f"openfleet-{os.environ.get('OPENFLEET_LAB') or 'demo'}-monitor"
PRICES = [{"model": "H100*", "price": 2.5}, {"model": "A100*", "price": 1.5}, {"model": "*", "price": 1.0}]


@dataclass(frozen=True)
class Service:
    """A systemd unit on a GPU, and its recorded use.

    If `profile` is not empty, the unit runs in the first instance with that profile.
    """

    name: str
    host: str
    gpu: int
    profile: str
    use: Use
    #: The word that the audit must report for the service.
    word: str


SERVICES = [
    # Two services that need only small parts of a GPU, and one that uses its whole instance.
    Service("chat", "h100", 6, "", Use((5, 7), (0.02, 0.1)), "oversized_memory"),
    Service("search", "h100", 7, "", Use((11, 14), (0.05, 0.2)), "oversized_memory"),
    Service("train", "h100", 0, "2g.20gb", Use((14, 17), (0.12, 0.24)), "right"),
    # A service whose instance is too small, and a service that does not use its instance.
    Service("render", "h100", 3, "1g.20gb", Use((18.6, 19), (0.04, 0.1)), "saturated"),
    Service("notebook", "h100", 0, "3g.40gb", Use((9, 9), (0, 0)), "idle"),
]


def show() -> list[str]:
    """Run the services and the audit, and return the checks that failed.

    Each failed check is one sentence. Raises FleetError if a step fails.
    """
    try:
        prometheus = Prometheus(podman_run("monitor"))
        places = {_start(service): service.use for service in SERVICES}
        end = int(time.time())
        put_into(MONITOR, text(_seen(prometheus, places), places, end - DAYS * DAY, end))
        goes_on(prometheus)
    except (PrometheusError, NvidiaSmiError, RuntimeError, OSError, ValueError, CalledProcessError) as error:
        raise FleetError(f"the recorded history could not be put into Prometheus: {error}") from error
    print(f"{len(SERVICES)} services run from now on. Prometheus has a made-up history of the {DAYS} days before.")
    with relay(MONITOR) as url:
        settings = {
            "gpu_audit_prometheus": {"url": url},
            "gpu_audit_window": f"{DAYS}d",
            "gpu_audit_prices": PRICES,
            "gpu_audit_currency": "EUR",
            "gpu_audit_dir": str(REPORT),
            "gpu_audit_previous": "",
            # The history of three days contains no weekend.
            "gpu_audit_thresholds": SHORT,
            "gpu_rightsize_dir": str(REPORT),
            # The history covers the services, although they have only just started.
            "gpu_rightsize_thresholds": {**SHORT, "least_history_hours": 0},
            "gpu_rightsize_reclaim_grace": "0.1m",
        }
        for page in ("audit", "rightsize"):
            (REPORT / f"{page}.html").unlink(missing_ok=True)
            (REPORT / f"{page}.json").unlink(missing_ok=True)
            play(f"playbooks/{page}.yml", "-e", json.dumps(settings))
    return _differences()


def _start(service: Service) -> tuple[str, str]:
    """Start a service, and return the GPU's UUID and the id of the instance or ""."""
    run = podman_run(service.host)
    gpu = read_gpus(run)[service.gpu]
    instance, where = "", f"--gpu {service.gpu}"
    if service.profile:
        instance = str(min(number for number, one in gpu.instances.items() if one.profile == service.profile))
        where += f" --gi {instance} --ci 0"
    memory = int(service.use.memory_gib[0] * 1024)
    command = f"gpusim run {where} --memory {memory}MiB -- sleep infinity"
    status, output = run(f"systemd-run --quiet --collect --unit={service.name} {command}")
    if status != 0:
        raise FleetError(f"{service.name} does not start on {service.host}: {output.strip()[-300:]}")
    return gpu.uuid, instance


def _seen(prometheus: Prometheus, places: dict) -> dict[Place, Subject]:
    """Wait until Prometheus sees all services at work, and return its subjects."""
    deadline = time.monotonic() + 120
    while True:
        there = subjects(prometheus)
        waiting = [p for p in places if p not in there or not _works(there[p])]
        if not waiting:
            return there
        reason = prometheus.why_broken()
        if reason or time.monotonic() > deadline:
            raise RuntimeError(f"Prometheus shows no process on {waiting} {reason}".rstrip())
        time.sleep(0.5)


def _works(subject: Subject) -> bool:
    processes = subject.series.get("gpu:processes")
    return processes is not None and processes.value > 0


def _differences() -> list[str]:
    """Return what is wrong with the audit of the services and with the proposal."""
    report = json.loads((REPORT / "audit.json").read_text())
    words = {}
    for finding in report["findings"]:
        for holder in finding["holding"]["holders"] or ():
            words.update(
                {one.name: finding["verdict"]["word"] for one in SERVICES if f"{one.name}.service" in holder["who"]}
            )
    wrong = [
        f"the audit calls {one.name} {words.get(one.name, 'nothing')}, and it is {one.word}"
        for one in SERVICES
        if words.get(one.name) != one.word
    ]
    if "pip install ortools" in (REPORT / "rightsize.json").read_text():
        wrong.append("the proposal was made without OR-Tools, so that it may free fewer GPUs")
    return wrong + [f"there is no page {page}" for page in PAGES if not page.exists()]
