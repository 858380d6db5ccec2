# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures for the steps of the scenario. Each one builds on the one before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab_fixtures import container_name, lab_host
from prometheus import Prometheus
from recorded_history import DAY, goes_on, put_into, subjects, text
from relay import relay
from thorough import THOROUGH

sys.path.insert(0, str(Path(__file__).resolve().parent))
import services
from services import BILLING, CONTAINER, DRAFT, SERVICES

__all__ = ["lab_host"]

SCENARIO = Path(__file__).resolve().parents[1]
HOSTS = ("hopper", "slices", "ada")
#: No run of these tests has a reason to take as long, not on a busy machine either.
TIMEOUT_SECONDS = 480


@dataclass(frozen=True)
class Played:
    """A playbook that ended well: what it said, and the report that it left."""

    told: str
    report: dict


class Site:
    """The inventory and the address of the monitoring host's Prometheus."""

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
            # A week is recorded.
            "gpu_rightsize_thresholds": {"least_history_hours": 0, "new_holder_hours": 120},
            "gpu_rightsize_reclaim_grace": "0.1m",
            "gpu_rightsize_reclaim_look_seconds": 2,
        }
        told = self.play("playbooks/rightsize.yml", **settings, **variables)
        return Played(told, json.loads((self.folder / "rightsize" / "rightsize.json").read_text()))


class Fleet:
    """Who runs where."""

    def __init__(self, hosts: dict) -> None:
        self.hosts = hosts
        self.places: dict[str, tuple[str, str]] = {}

    def begin(self) -> None:
        # A holder's history does not reach further back than its processes, which are to be as old as the week that is recorded:
        # their start is counted from the boot, and that was two weeks earlier then.
        earlier = f"sed 's/^btime .*/btime {int(time.time()) - 14 * DAY}/' /proc/stat >/run/stat-of-weeks"
        for host in self.hosts.values():
            host.check_output(f"{earlier} && mount --bind /run/stat-of-weeks /proc/stat")
        for service in SERVICES:
            self.places[service.name] = services.start(service, self.hosts[service.host], service.gpu, service.start)
        for service in (DRAFT, BILLING):
            self.places[service.name] = services.install(service, self.hosts[service.host])
        self.places[CONTAINER.name] = services.start_container(CONTAINER, self.hosts[CONTAINER.host])

    def uses(self) -> dict:
        """By place what is made of it."""
        known = {service.name: service.use for service in [*SERVICES, DRAFT, BILLING, CONTAINER]}
        return {place: known[name] for name, place in self.places.items()}

    def pids(self) -> dict[str, str]:
        return {one.name: services.pid(one, self.hosts[one.host]) for one in SERVICES}

    def active(self) -> dict[str, str]:
        """What systemd says of each: active, inactive, ..."""
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
        """A week that went as things are now, once Prometheus sees them so."""
        for host in fleet.hosts.values():
            # Metrics of holders are exported once a minute.
            host.check_output("systemctl start gpu-layout-metrics.service")
        deadline = time.monotonic() + 300
        wanted = self._as_it_is(fleet)
        while (seen := self._as_it_is_seen()) != wanted:
            assert time.monotonic() < deadline, f"Prometheus sees {seen}, and there is {wanted}"
            time.sleep(0.5)
        end = int(time.time())
        put_into(container_name("monitor"), text(subjects(self.prometheus), fleet.uses(), end - 7 * DAY, end))
        goes_on(self.prometheus)

    @staticmethod
    def _as_it_is(fleet: Fleet) -> tuple[int, list, list]:
        """GPUs and instances by the word of nvidia-smi; where services run; where containers are."""
        devices = sum(1 + len(gpu.instances) for host in fleet.hosts.values() for gpu in services.gpus(host))
        running = sorted(fleet.places[one.name] for one in [*SERVICES, DRAFT, BILLING] if one.name in fleet.places)
        return devices, running, [fleet.places[CONTAINER.name]] if CONTAINER.name in fleet.places else []

    def _as_it_is_seen(self) -> tuple[int, list, list]:
        def places(expression: str) -> list:
            found = [one.labels for one in self.prometheus.query(expression)]
            return sorted((labels["gpu_uuid"], labels.get("mig_instance", "")) for labels in found)

        # A GPU counts the processes in its instances as its own.
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
    """audit.yml, after a week of that."""
    monitor.record_a_week(fleet)
    return site.audit()


@dataclass(frozen=True)
class Reclaimed(Played):
    """rightsize.yml, and what of the services ran then and stood in its log."""

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
    """What may be stopped, and nothing is: that is the default."""
    return reclaim()


@pytest.fixture(scope="session")
def announced(reclaim, listed) -> Reclaimed:
    """What may be stopped is announced in the first run that may stop anything."""
    return reclaim(gpu_rightsize_reclaim="act", gpu_rightsize_reclaim_tell=["wall", "home"])


@pytest.fixture(scope="session")
def kept(reclaim, announced, fleet) -> Reclaimed:
    """The notice's time is over, and the owner of one keeps it, without root."""
    fleet.hosts[DRAFT.host].check_output("runuser -u %s -- gpu-layout keep draft 1h", DRAFT.user)
    return reclaim(gpu_rightsize_reclaim="act", gpu_rightsize_reclaim_notice="0.001m")


@pytest.fixture(scope="session")
def proposal(reclaim, kept, fleet) -> Reclaimed:
    """The owner needs it no more."""
    fleet.hosts[DRAFT.host].check_output("runuser -u %s -- gpu-layout keep --end draft", DRAFT.user)
    return reclaim(
        gpu_rightsize_reclaim="act", gpu_rightsize_reclaim_notice="0.001m", gpu_rightsize_reclaim_tell=["home"]
    )


@pytest.fixture(scope="session")
def proposal_again(reclaim, proposal) -> Reclaimed:
    return reclaim(gpu_rightsize_reclaim="act")


@dataclass(frozen=True)
class Applied:
    """site.yml with the proposal: what it said, and the services' pids before and after."""

    told: str
    before: dict[str, str]
    after: dict[str, str]


@pytest.fixture(scope="session")
def applied(request, site, fleet, proposal) -> Applied:
    if THOROUGH:
        # It asks for what is before this.
        request.getfixturevalue("proposal_again")
    before = fleet.pids()
    # The proposal is for one host; the host that audits has nothing to change.
    limit = [] if THOROUGH else ["--limit", "hopper,monitor"]
    told = site.play("site.yml", "-i", str(site.folder / "rightsize" / "proposal"), *limit)
    return Applied(told, before, fleet.pids())


@pytest.fixture(scope="session")
def second(site, fleet, monitor, proposal, applied) -> Played:
    """Each workload that has a new place goes there, as its owner would let it. After a week of that: audit.yml."""
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
