# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provide fixtures for the scenario's steps. Each step depends on the one before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.lab_fixtures import container_name, lab_host
from tests.lab.prometheus import Prometheus
from tests.lab.recorded_history import DAY, goes_on, put_into, subjects, text, without_activity
from tests.lab.relay import relay
from tests.thorough import THOROUGH

sys.path.insert(0, str(Path(__file__).resolve().parent))
import services
from services import BILLING, CONTAINER, DRAFT, SERVICES

__all__ = ["lab_host"]

SCENARIO = Path(__file__).resolve().parents[1]
HOSTS = ("hopper", "slices", "ada")
#: Time limit of a run. No run takes this long, even on a busy machine.
TIMEOUT_SECONDS = 480


@dataclass(frozen=True)
class Played:
    """A successful run of a playbook: its output and its report."""

    told: str
    report: dict


class Site:
    """The scenario's inventory, and the address of the monitoring host's Prometheus."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder

    def play(self, playbook: str, *arguments: str, **variables: object) -> str:
        command = ["ansible-playbook", "-i", str(SCENARIO / "inventory"), *arguments, playbook]
        variables.setdefault("gpu_report_dir", str(self.folder / "report"))
        done = subprocess.run(
            [*command, "-e", json.dumps(variables)],
            cwd=SCENARIO.parents[1],
            env={**os.environ, "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
        return done.stdout

    def audit(self) -> Played:
        settings = {"gpu_audit_prometheus": {"url": self.url}, "gpu_audit_dir": str(self.folder / "audit")}
        told = self.play("playbooks/audit.yml", **settings)
        return Played(told, json.loads((self.folder / "audit" / "audit.json").read_text()))

    def rightsize(self, **variables: object) -> Played:
        settings = {
            "gpu_audit_prometheus": {"url": self.url},
            "gpu_rightsize_dir": str(self.folder / "rightsize"),
            # The recorded history covers one week.
            "gpu_rightsize_thresholds": {"least_history_hours": 0, "new_holder_hours": 120},
            "gpu_rightsize_reclaim_grace": "0.1m",
            "gpu_rightsize_reclaim_look_seconds": 2,
        }
        told = self.play("playbooks/rightsize.yml", **settings, **variables)
        return Played(told, json.loads((self.folder / "rightsize" / "rightsize.json").read_text()))


class Fleet:
    """The fleet's workloads, and the GPUs or instances that they use."""

    def __init__(self, hosts: dict) -> None:
        self.hosts = hosts
        self.places: dict[str, tuple[str, str]] = {}

    def begin(self) -> None:
        # A holder's history starts with its processes, so the processes must be as old as the recorded week. Their
        # start times are relative to the boot, so set the boot time two weeks earlier.
        earlier = f"sed 's/^btime .*/btime {int(time.time()) - 14 * DAY}/' /proc/stat >/run/stat-of-weeks"
        for host in self.hosts.values():
            host.check_output(f"{earlier} && mount --bind /run/stat-of-weeks /proc/stat")
        for service in SERVICES:
            self.places[service.name] = services.start(service, self.hosts[service.host], service.gpu, service.start)
        for service in (DRAFT, BILLING):
            self.places[service.name] = services.install(service, self.hosts[service.host])
        self.places[CONTAINER.name] = services.start_container(CONTAINER, self.hosts[CONTAINER.host])

    def uses(self) -> dict:
        """Return the GPU use of the workload in each place."""
        known = {service.name: service.use for service in [*SERVICES, DRAFT, BILLING, CONTAINER]}
        return {place: known[name] for name, place in self.places.items()}

    def pids(self) -> dict[str, str]:
        return {one.name: services.pid(one, self.hosts[one.host]) for one in SERVICES}

    def active(self) -> dict[str, str]:
        """Return each unit's state in systemd, such as active or inactive."""
        every = [*SERVICES, DRAFT, BILLING, CONTAINER]
        return {one.name: self.hosts[one.host].run("systemctl is-active %s", one.name).stdout.strip() for one in every}

    def end(self) -> None:
        for one in [*SERVICES, DRAFT, BILLING, CONTAINER]:
            self.hosts[one.host].run("systemctl stop %s", one.name)
        for host in self.hosts.values():
            host.run("umount /proc/stat")


class Monitor:
    def __init__(self, host) -> None:
        def run(command: str) -> tuple[int, str]:
            done = host.run(command)
            return done.rc, done.stdout + done.stderr

        self.prometheus = Prometheus(run)

    def record_a_week(self, fleet: Fleet) -> None:
        """Record a week of the current use after Prometheus sees all workloads."""
        for host in fleet.hosts.values():
            # A timer exports the holders' metrics only once a minute, so export them now.
            host.check_output("systemctl start gpu-layout-metrics.service")
        deadline = time.monotonic() + 300
        wanted = self._as_it_is(fleet)
        while (seen := self._as_it_is_seen()) != wanted:
            assert time.monotonic() < deadline, f"Prometheus sees {seen}, and there is {wanted}"
            time.sleep(0.5)
        while unknown := without_activity(there := subjects(self.prometheus), fleet.uses()):
            assert time.monotonic() < deadline, f"Prometheus does not know the activity of {sorted(unknown)}"
            time.sleep(0.5)
        end = int(time.time())
        put_into(container_name("monitor"), text(there, fleet.uses(), end - 7 * DAY, end))
        goes_on(self.prometheus)

    @staticmethod
    def _as_it_is(fleet: Fleet) -> tuple[int, list, list]:
        """Return the number of devices, and where services and containers run.

        nvidia-smi reports the GPUs and instances.
        """
        devices = sum(1 + len(gpu.instances) for host in fleet.hosts.values() for gpu in services.gpus(host))
        running = sorted(fleet.places[one.name] for one in [*SERVICES, DRAFT, BILLING] if one.name in fleet.places)
        return devices, running, [fleet.places[CONTAINER.name]] if CONTAINER.name in fleet.places else []

    def _as_it_is_seen(self) -> tuple[int, list, list]:
        def places(expression: str) -> list:
            found = [one.labels for one in self.prometheus.query(expression)]
            return sorted((labels["gpu_uuid"], labels.get("mig_instance", "")) for labels in found)

        # A GPU's processes include the processes in its instances.
        whole = (
            "gpu:processes > 0 unless on (gpu_uuid) (gpu:info{mig_instance!=''}) or gpu:processes{mig_instance!=''} > 0"
        )
        return len(places("gpu:info")), places(whole), places("gpu:held{kind='container'} > 0")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    with relay(container_name("monitor")) as url:
        yield Site(url, tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="session")
def fleet(lab_host):
    made = Fleet({name: lab_host(name) for name in HOSTS})
    made.end()
    made.begin()
    yield made
    made.end()


@pytest.fixture(scope="session")
def monitor(lab_host):
    return Monitor(lab_host("monitor"))


@pytest.fixture(scope="session")
def first(site, fleet, monitor) -> Played:
    """Run audit.yml after the recorded week."""
    monitor.record_a_week(fleet)
    return site.audit()


@dataclass(frozen=True)
class Reclaimed(Played):
    """A run of rightsize.yml, and the units' states and reclaim log after it."""

    active: dict[str, str]
    log: list[str]


@pytest.fixture(scope="session")
def reclaim(site, fleet):
    def play(**variables: object) -> Reclaimed:
        played = site.rightsize(gpu_rightsize_reclaim_exempt=["bill*"], **variables)
        log = site.folder / "rightsize" / "reclaim.log"
        return Reclaimed(
            played.told, played.report, fleet.active(), log.read_text().splitlines() if log.exists() else []
        )

    return play


@pytest.fixture(scope="session")
def listed(reclaim, first) -> Reclaimed:
    """Run rightsize.yml with its defaults. It lists workloads and stops none."""
    return reclaim()


@pytest.fixture(scope="session")
def announced(reclaim, listed) -> Reclaimed:
    """Run rightsize.yml with permission to stop workloads.

    The first such run only announces which workloads it will stop.
    """
    return reclaim(gpu_rightsize_reclaim="act", gpu_rightsize_reclaim_tell=["wall", "home"])


@pytest.fixture(scope="session")
def kept(reclaim, announced, fleet) -> Reclaimed:
    """Run rightsize.yml after the notice period.

    Before this run, the owner of the service `draft` asked to keep it. This request needs no root rights.
    """
    fleet.hosts[DRAFT.host].check_output("runuser -u %s -- gpu-layout keep draft 1h", DRAFT.user)
    return reclaim(gpu_rightsize_reclaim="act", gpu_rightsize_reclaim_notice="0.001m")


@pytest.fixture(scope="session")
def proposal(reclaim, kept, fleet) -> Reclaimed:
    """Run rightsize.yml after the owner has ended the keep request."""
    fleet.hosts[DRAFT.host].check_output("runuser -u %s -- gpu-layout keep --end draft", DRAFT.user)
    return reclaim(
        gpu_rightsize_reclaim="act", gpu_rightsize_reclaim_notice="0.001m", gpu_rightsize_reclaim_tell=["home"]
    )


@pytest.fixture(scope="session")
def proposal_again(reclaim, proposal) -> Reclaimed:
    return reclaim(gpu_rightsize_reclaim="act")


@dataclass(frozen=True)
class Applied:
    """A run of site.yml with the proposal: its output, and the services' pids.

    The pids are from before and after the run.
    """

    told: str
    before: dict[str, str]
    after: dict[str, str]


@pytest.fixture(scope="session")
def applied(request, site, fleet, proposal) -> Applied:
    if THOROUGH:
        # Make the second proposal before the first one is applied.
        request.getfixturevalue("proposal_again")
    before = fleet.pids()
    # Apply the proposal only to one host. The host on which the audit runs does not change.
    limit = [] if THOROUGH else ["--limit", "hopper,monitor"]
    told = site.play("site.yml", "-i", str(site.folder / "rightsize" / "proposal"), *limit)
    return Applied(told, before, fleet.pids())


@pytest.fixture(scope="session")
def second(site, fleet, monitor, proposal, applied) -> Played:
    """Move each workload that has a new place, and run audit.yml again.

    In practice, the owner moves the workload. Before the audit, this fixture records a week with the new places.
    """
    del fleet.places[CONTAINER.name], fleet.places[DRAFT.name]
    known = {service.name: service for service in SERVICES}
    for row in proposal.report["workloads"]:
        if row["change"] in ("moved", "resized"):
            service = known[row["name"]]
            host = fleet.hosts[row["then_host"]]
            services.stop(service, fleet.hosts[service.host])
            first_slice = int(row["then"].rpartition(" at ")[2]) if " at " in row["then"] else None
            fleet.places[service.name] = services.start(service, host, row["then_gpu_index"], first_slice)
    monitor.record_a_week(fleet)
    return site.audit()
