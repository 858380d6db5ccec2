# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Close the loop on the demo's fleet: audit, reclaim, resize and audit again.

Services run as units on simulated GPUs. Their history of three days is made up, and the output says so. rightsize.yml
announces an idle notebook and stops it. Then the steps of its page are followed: site.yml applies the proposal, and
services are restarted on their new parts. The page of all audits shows what was saved.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from dataclasses import dataclass
from subprocess import CalledProcessError

from tests.lab.fleet import LAB, FleetError, play
from tests.lab.nvidia_smi import NvidiaSmiError, Run, read_gpus
from tests.lab.prometheus import Prometheus, PrometheusError
from tests.lab.recorded_history import DAY, Place, Subject, Use, goes_on, put_into, subjects, text, without_activity
from tests.lab.relay import relay
from tests.lab.verify_layout import podman_run

REPORT = LAB / "report"
AUDITS = REPORT / "audits"
#: These pages are: the list of all audits with the savings, the last audit, and the proposal.
PAGES = [AUDITS / "index.html", AUDITS / "latest" / "audit.html", REPORT / "rightsize.html"]
SHORT = {"idle_hours": 24, "new_holder_hours": 0}
DAYS = 3
HOST = "h100"
MONITOR = f"openfleet-{os.environ.get('OPENFLEET_LAB') or 'demo'}-monitor"
PRICES = [{"model": "H100*", "price": 2.5}, {"model": "A100*", "price": 1.5}, {"model": "*", "price": 1.0}]
OWNERS = [
    {"team": "assistant", "contact": "#assistant", "units": ["chat", "search"]},
    {"team": "research", "contact": "research@example.org", "accounts": ["alice", "bob"]},
]


@dataclass(frozen=True)
class Service:
    """A systemd unit on a GPU of HOST, its user, and its recorded use.

    If `profile` is not empty, the unit first runs in the first instance with that profile. The first audit must give
    the verdict `word`, and the last audit the verdict `then`.
    """

    name: str
    user: str
    gpu: int
    profile: str
    use: Use
    word: str
    then: str


SERVICES = [
    # Two services that need only small parts of a GPU, and one that uses its whole instance.
    Service("chat", "root", 6, "", Use((5, 7), (0.02, 0.1)), "oversized_memory", "right"),
    Service("search", "root", 7, "", Use((22, 26), (0.05, 0.3)), "oversized_memory", "right"),
    Service("train", "bob", 0, "2g.20gb", Use((14, 17), (0.12, 0.24)), "right", "right"),
    # A service whose instance is too small, and a notebook that does not use its instance.
    Service("render", "bob", 3, "1g.20gb", Use((18.6, 19), (0.04, 0.1)), "saturated", "saturated"),
    Service("notebook", "alice", 0, "3g.40gb", Use((9, 9), (0, 0)), "idle", ""),
]
NOTEBOOK = SERVICES[-1]


def show() -> list[str]:
    """Close the loop, and return the checks that failed.

    Each failed check is one sentence. Raises FleetError if a step fails.
    """
    run = podman_run(HOST)
    shutil.rmtree(AUDITS, ignore_errors=True)
    try:
        _start_weeks_ago(run)
        prometheus = Prometheus(podman_run("monitor"))
        places = {one.name: _install(one, run) for one in SERVICES}
        _record(prometheus, places)
        print(f"{len(SERVICES)} services run from now on. Prometheus has a made-up history of the {DAYS} days before.")
        with relay(MONITOR) as url:
            return _loop(run, prometheus, places, _settings(url))
    except (PrometheusError, NvidiaSmiError, RuntimeError, OSError, ValueError, CalledProcessError) as error:
        raise FleetError(f"the services and their history: {error}") from error
    finally:
        run("umount /proc/stat")


def _loop(run: Run, prometheus: Prometheus, places: dict[str, Place], settings: dict[str, object]) -> list[str]:
    _play("audit", settings)
    wrong = _differences({one.name: one.word for one in SERVICES})

    _title("rightsize.yml announces the idle notebook, and a second run stops it")
    acting = {**settings, "gpu_rightsize_reclaim": "act"}
    _play("rightsize", acting)
    if not _is_active(run, NOTEBOOK.name):
        wrong.append("the notebook was stopped without a notice")
    _play("rightsize", acting)
    if _is_active(run, NOTEBOOK.name):
        wrong.append("the idle notebook still runs after its notice")
    del places[NOTEBOOK.name]

    _title(f"The steps of {PAGES[2]}")
    proposal = json.loads((REPORT / "rightsize.json").read_text())
    for step in proposal["steps"]:
        places.update(_follow(step, run, proposal))
    if not any(step["kind"] == "apply" for step in proposal["steps"]):
        wrong.append("the proposal changes no layout")
    resized = {row["name"] for row in proposal["workloads"] if row["change"] in ("moved", "resized")}
    wrong += [f"the proposal does not change {name}" for name in sorted({"chat", "search"} - resized)]

    _title(f"The audit {DAYS} days later, with a made-up history of the new parts")
    _record(prometheus, places)
    _play("audit", settings)
    wrong += _differences({one.name: one.then for one in SERVICES if one.then})
    if "pip install ortools" in (REPORT / "rightsize.json").read_text():
        wrong.append("the proposal was made without OR-Tools, so that it may free fewer GPUs")
    return [*wrong, *_saved(), *(f"there is no page {page}" for page in PAGES if not page.exists())]


def _settings(url: str) -> dict[str, object]:
    return {
        "gpu_audit_prometheus": {"url": url},
        "gpu_audit_window": f"{DAYS}d",
        "gpu_audit_prices": PRICES,
        "gpu_audit_currency": "EUR",
        "gpu_audit_dir": str(AUDITS),
        "gpu_audit_keep": 2,
        "gpu_owners": OWNERS,
        # The history of three days contains no weekend.
        "gpu_audit_thresholds": SHORT,
        "gpu_rightsize_hosts": HOST,
        # This host has no free instance with this profile, so the layout must change.
        "gpu_rightsize_workloads": [{"match": "search", "profile": "4g.40gb"}],
        "gpu_rightsize_dir": str(REPORT),
        # The services have only just started, but the recorded history says that they ran for days.
        "gpu_rightsize_thresholds": {**SHORT, "least_history_hours": 0},
        # The usual waiting times are days and minutes. The demo cannot wait that long.
        "gpu_rightsize_reclaim_grace": "0.1m",
        "gpu_rightsize_reclaim_notice": "0.01m",
        "gpu_rightsize_reclaim_tell": ["wall"],
        "gpu_rightsize_reclaim_look_seconds": 2,
    }


def _title(sentence: str) -> None:
    print(f"\n--- {sentence}", flush=True)


def _play(page: str, settings: dict[str, object]) -> None:
    play(f"playbooks/{page}.yml", "-e", json.dumps(settings))


# --- Services ---------------------------------------------------------------------------------------------------------


def _start_weeks_ago(run: Run) -> None:
    """Set the host's boot time back by two weeks.

    Processes record their start relative to the boot, so they then appear as old as the recorded history.
    """
    earlier = f"sed 's/^btime .*/btime {int(time.time()) - 14 * DAY}/' /proc/stat >/run/stat-of-weeks"
    _must(run, f"umount /proc/stat 2>/dev/null; {earlier} && mount --bind /run/stat-of-weeks /proc/stat")


def _install(service: Service, run: Run) -> Place:
    """Install a service on its first part, and start it.

    The unit reads its device from a file. To move the service, its owner changes the file.
    """
    gpu = read_gpus(run)[service.gpu]
    starts = sorted(one.start for one in gpu.instances.values() if one.profile == service.profile)
    place = _give_device(service, run, service.gpu, starts[0] if service.profile else None)
    memory = int(service.use.memory_gib[0] * 1024)
    lines = [
        "[Service]",
        f"User={service.user}",
        f"EnvironmentFile=/etc/demo-{service.name}",
        f"ExecStart=gpusim run $DEVICE --memory {memory}MiB -- sleep infinity",
    ]
    if service.user != "root":
        _must(run, f"id {service.user} >/dev/null 2>&1 || useradd --create-home {service.user}")
    unit = f"/etc/systemd/system/{service.name}.service"
    _must(
        run,
        f"printf '%s\\n' {shlex.join(lines)} >{unit} && systemctl daemon-reload && systemctl restart {service.name}",
    )
    return place


def _give_device(service: Service, run: Run, index: int, start: int | None) -> Place:
    """Write a service's device to its file, and return its place.

    The service's unit reads this file. `start` is the first memory slice of an instance, or None for a whole GPU.
    """
    gpu = read_gpus(run)[index]
    instance, device = "", f"--gpu {index}"
    if start is not None:
        instance = str(next(number for number, one in gpu.instances.items() if one.start == start))
        device += f" --gi {instance} --ci 0"
    _must(run, f"echo 'DEVICE={device}' >/etc/demo-{service.name}")
    return gpu.uuid, instance


def _is_active(run: Run, name: str) -> bool:
    return run(f"systemctl is-active --quiet {name}")[0] == 0


def _must(run: Run, command: str) -> str:
    """Run a command that must succeed, and return its output."""
    status, output = run(command)
    if status != 0:
        raise FleetError(f"{HOST}: {command} ended with status {status}: {output.strip()[-500:]}")
    return output


# --- Steps of the page ------------------------------------------------------------------------------------------------


def _follow(step: dict, run: Run, proposal: dict) -> dict[str, Place]:
    """Follow one step of the page. If the step starts a service, return its new place."""
    print(f"{step['text']}:", flush=True)
    places = {}
    for line in step["command"].splitlines():
        print(f"  $ {line}", flush=True)
        words = shlex.split(line)
        if words[0] == "ansible-playbook":
            named = {"INVENTORY": "inventories/simulated", "proposal": str(REPORT / "proposal")}
            program, *arguments = [named.get(word, word) for word in words[1:]]
            play(program, *arguments)
            continue
        # ssh HOST COMMAND
        started = re.fullmatch(r"sudo systemctl start (\S+)\.service", words[2])
        if started:
            service = next(one for one in SERVICES if one.name == started[1])
            row = next(one for one in proposal["workloads"] if one["name"] == service.name)
            first_slice = re.search(r" at (\d+)$", row["then"])
            start = int(first_slice[1]) if first_slice else None
            places[service.name] = _give_device(service, run, row["then_gpu_index"], start)
        output = _must(run, words[2].removeprefix("sudo "))
        # A step can list all devices, which is too long to print.
        if "nvidia-smi" not in line:
            print(output, end="", flush=True)
    return places


# --- History ----------------------------------------------------------------------------------------------------------


def _record(prometheus: Prometheus, places: dict[str, Place]) -> None:
    """Wait until Prometheus sees all services, then record days of history for them."""
    uses = {places[one.name]: one.use for one in SERVICES if one.name in places}
    end = int(time.time())
    put_into(MONITOR, text(_seen(prometheus, uses), uses, end - DAYS * DAY, end))
    goes_on(prometheus)


def _seen(prometheus: Prometheus, uses: dict[Place, Use]) -> dict[Place, Subject]:
    """Wait until Prometheus sees exactly these services, and return its subjects.

    A service that is not in `uses` must not be visible.
    """
    deadline = time.monotonic() + 120
    while True:
        seen = subjects(prometheus)
        working = {place for place, subject in seen.items() if _works(subject)}
        split = {uuid for uuid, instance in seen if instance}
        # The processes of a whole GPU include the processes in its instances, so a GPU with instances is not compared.
        differing = {place for place in working ^ set(uses) if place[1] or place[0] not in split}
        differing |= without_activity(seen, uses)
        if not differing:
            return seen
        reason = prometheus.why_broken()
        if reason or time.monotonic() > deadline:
            raise RuntimeError(f"Prometheus and the services differ on {sorted(differing)} {reason}".rstrip())
        time.sleep(0.5)


def _works(subject: Subject) -> bool:
    processes = subject.series.get("gpu:processes")
    return processes is not None and processes.value > 0


# --- Checks -----------------------------------------------------------------------------------------------------------


def _differences(expected: dict[str, str]) -> list[str]:
    """Return the services whose verdict in the last audit differs."""
    report = json.loads((AUDITS / "latest" / "audit.json").read_text())
    words = {}
    for finding in report["findings"]:
        for holder in finding["holding"]["holders"] or ():
            words.update({name: finding["verdict"]["word"] for name in expected if f"{name}.service" in holder["who"]})
    return [
        f"the audit calls {name} {words.get(name, 'nothing')}, and it is {word}"
        for name, word in expected.items()
        if words.get(name) != word
    ]


def _saved() -> list[str]:
    """Print the savings between the two audits. Return an error if there are none."""
    summaries = [json.loads((one / "summary.json").read_text()) for one in sorted(AUDITS.glob("20*"))]
    before, after = (one["summary"]["ledger"]["reserved_unused"] for one in (summaries[0], summaries[-1]))
    _title("Savings")
    for name, one in (("before", before), ("after", after)):
        print(f"{name:8}{one['gpus']:6.2f} GPUs reserved and unused, {one['cost_per_month']:,.0f} EUR per month")
    saved = before["cost_per_month"] - after["cost_per_month"]
    print(f"saved   {before['gpus'] - after['gpus']:6.2f} GPUs, {saved:,.0f} EUR per month")
    return [] if saved > 0 else ["nothing was saved"]
