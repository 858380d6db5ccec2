# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the role gpu_audit on a control host with a real systemd.

The tests cover the timer, the service and the sandbox, and run in order.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
import ssh_way
import yaml

from tests import how_to

REPORTS = "/srv/gpu-audit"
SETTINGS = "/srv/inventory/group_vars/all.yml"
SETTINGS_OF_THE_TIMER = Path(__file__).resolve().parents[1] / "inventory" / "group_vars" / "gpu_audit.yml"
STAMP = "/var/lib/systemd/timers/stamp-gpu-audit.timer"
FILES = {"audit.json", "audit.csv", "audit-hours.csv", "audit-owners.csv", "audit.prom", "audit.html", "summary.json"}
DROP_IN = "/run/systemd/system/gpu-audit.service.d/probe.conf"
#: The address of the host in the control host's inventory (prepare.yml).
ADDRESS = "127.0.0.13"
PATIENCE_SECONDS = 480


@dataclass(frozen=True)
class Ran:
    """A run of the service.

    It has the status of `systemctl start`, the service's result and its output. `reports` lists the reports after the
    run.
    """

    rc: int
    result: str
    status: str
    said: str
    reports: list[str]


class Control:
    def __init__(self, host) -> None:
        self.host = host

    def show(self, unit: str, name: str) -> str:
        return self.host.check_output("systemctl show --property=%s --value %s", name, unit)

    def reports(self) -> list[str]:
        return sorted(name for name in self.host.file(REPORTS).listdir() if name.endswith("Z"))

    def run(self) -> Ran:
        (start,) = [each for each in how_to.commands("weekly-audit.md", "#") if " start " in each]
        started = self.host.run(start)
        return self.ran(started.rc)

    def ran(self, rc: int) -> Ran:
        unit = "gpu-audit.service"
        self.host.check_output("journalctl --sync")
        said = self.host.check_output(
            "journalctl --output=cat _SYSTEMD_INVOCATION_ID=%s", self.show(unit, "InvocationID")
        )
        return Ran(rc, self.show(unit, "Result"), self.show(unit, "ExecMainStatus"), said, self.reports())

    def json(self, path: str) -> dict:
        return json.loads(self.host.file(f"{REPORTS}/{path}").content_string)


@pytest.fixture(scope="module")
def control(lab_host, second) -> Control:
    """Return the control host after the recorded week and before any report.

    It can reach only one of the GPU hosts.
    """
    host = lab_host("monitor")
    ssh_way.make(host, lab_host("ada"), ADDRESS)
    host.check_output(f"rm -rf {REPORTS}/*")
    return Control(host)


@pytest.fixture(scope="module")
def once(control) -> Ran:
    return control.run()


@pytest.fixture(scope="module")
def caught_up(control, once) -> Ran:
    """Let the timer start a second run, as if the host had missed the planned time."""
    before = control.show("gpu-audit.service", "InvocationID")
    control.host.check_output("systemctl stop gpu-audit.timer")
    control.host.check_output("touch --date=2000-01-01 %s", STAMP)
    control.host.check_output("systemctl start gpu-audit.timer")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (
        control.show("gpu-audit.service", "InvocationID") == before
        or control.show("gpu-audit.service", "ActiveState") == "activating"
    ):
        assert time.monotonic() < deadline, "the timer has not started the service, or the service does not end"
        time.sleep(0.2)
    return control.ran(0)


def test_settings_of_the_how_to_are_those_of_the_scenario():
    page = yaml.safe_load(how_to.blocks("weekly-audit.md", "yaml")[0])
    assert page.items() <= yaml.safe_load(SETTINGS_OF_THE_TIMER.read_text()).items()


def test_how_to_shows_the_timer(control):
    (show,) = [each for each in how_to.commands("weekly-audit.md", "#") if "list-timers" in each]
    assert "gpu-audit.service" in control.host.check_output(show)


def test_timer_is_enabled_and_waiting(control):
    assert control.host.check_output("systemctl is-enabled gpu-audit.timer") == "enabled"
    assert control.show("gpu-audit.timer", "SubState") == "waiting"
    assert "-02-29 03:00:00 " in control.show("gpu-audit.timer", "NextElapseUSecRealtime")


def test_the_service_audits(once, control, second, fleet):
    assert (once.rc, once.result, once.status) == (0, "success", "0"), once.said
    (report,) = once.reports
    assert control.json(f"{report}/summary.json")["line"] in once.said
    # The audit could not read two hosts, so it lacks their unused GPUs. For used GPUs, the verdicts are the same.
    found, known = words(control.json(f"{report}/audit.json")), words(second.report)
    assert set(found) == set(known)
    assert {place: found[place] for place in fleet.places.values()} == {
        place: known[place] for place in fleet.places.values()
    }


def test_service_reads_hosts_through_ssh(once, control, fleet):
    """Read the host through SSH.

    Without this access, the report would have no names of holders.
    """
    report = control.json(f"{once.reports[0]}/audit.json")
    named = {
        one["holding"]["subject"]["gpu_uuid"]: [holder["who"] for holder in one["holding"]["holders"]]
        for one in report["findings"]
        if one["holding"]["holders"]
    }
    assert set(named) == {fleet.places[name][0] for name in ("render", "billing")}
    for name in ("render", "billing"):
        (who,) = named[fleet.places[name][0]]
        assert f"{name}.service" in who


def test_ssh_key_allows_only_one_command(once, control):
    """Allow only one command through the SSH key.

    The key runs the same command for any request. Its account may run no other command as root.
    """
    ssh = f"runuser -u gpu-audit -- ssh -o BatchMode=yes {ssh_way.ACCOUNT}@{ADDRESS}"
    for command in ("id", "sudo -n id", "cat /etc/openfleet-gpu/layout.json"):
        answer = json.loads(control.host.check_output(f"{ssh} {command}"))
        assert set(answer) == {"driver_present", "gpus", "lost_gpus", "vgpu_tenants"}


def test_account_may_run_the_one_command(once, lab_host):
    host = lab_host("ada")
    listed = host.check_output("sudo -l -U gpu-audit")
    assert "(root) NOSETENV: NOPASSWD: /usr/local/bin/gpu-layout holders --json" in listed
    assert [line.split(")")[0].strip() for line in listed.splitlines() if ") " in line] == ["(root"]
    for words in ("id", "/usr/local/bin/gpu-layout apply", "/usr/local/bin/gpu-layout holders"):
        assert host.run(f"runuser -u gpu-audit -- sudo -n {words}").rc != 0
    rule = host.file("/etc/sudoers.d/openfleet-gpu-holders")
    assert (rule.user, rule.group, rule.mode) == ("root", "root", 0o440)


def words(report):
    found = {}
    for finding in report["findings"]:
        subject = finding["holding"]["subject"]
        found[subject["gpu_uuid"], subject["mig_instance"]] = finding["verdict"]["word"]
    return found


def test_reports_belong_to_the_user_and_its_group(once, control):
    (report,) = once.reports
    assert set(control.host.file(f"{REPORTS}/{report}").listdir()) == FILES
    assert control.host.file(f"{REPORTS}/latest").linked_to == f"{REPORTS}/{report}"
    paths = {
        REPORTS: 0o750,
        f"{REPORTS}/{report}": 0o750,
        f"{REPORTS}/index.html": 0o640,
        **{f"{REPORTS}/{report}/{name}": 0o640 for name in FILES},
    }
    for path, mode in paths.items():
        file = control.host.file(path)
        assert (path, file.user, file.group, file.mode) == (path, "gpu-audit", "gpu-audit", mode)


def test_missed_run_is_caught_up(caught_up, control):
    assert (caught_up.result, caught_up.status) == ("success", "0"), caught_up.said
    # The timer's stamp shows that the run is done.
    assert control.host.file(STAMP).mtime > datetime(2020, 1, 1)
    assert control.show("gpu-audit.timer", "SubState") == "waiting"


def test_second_report_does_not_replace_the_first(once, caught_up, control):
    assert len(caught_up.reports) == 2 and caught_up.reports[0] == once.reports[0]
    index = control.host.file(f"{REPORTS}/index.html").content_string
    for report in caught_up.reports:
        assert report in index
    summary = control.json("latest/audit.json")["summary"]
    assert (summary["new"], summary["gone"]) == (0, 0)


def test_vaulted_secret_uses_the_vault_password_of_root(control):
    """Decrypt the vaulted secret, although only root can read the password file."""
    assert "$ANSIBLE_VAULT;" in control.host.file(SETTINGS).content_string
    key = control.host.file("/etc/gpu-audit/vault-password")
    assert (key.user, key.mode) == ("root", 0o600)


#: Actions that the service's user tries. Each prints `name yes` or `name no`.
PROBE = r"""
tell() { printf '%s %s\n' "$1" "$2"; }
try() { name=$1; shift; if "$@" 2>/dev/null; then tell $name yes; else tell $name no; fi; }
try reports touch /srv/gpu-audit/probe
try setuid chmod u+s /srv/gpu-audit/probe
try own_state touch /var/lib/gpu-audit/probe
try tmp touch /tmp/probe
try folder touch /srv/open/probe
try home touch /home/open/probe
try shared_memory python3 -c 'import multiprocessing; multiprocessing.Lock()'
try device test -e /dev/open
try other_processes test -e /proc/1
try new_namespace unshare --user true
try vault_file test -r /etc/gpu-audit/vault-password
try credential test -s "$CREDENTIALS_DIRECTORY/vault"
tell user "$(id -un)"
tell capabilities "$(sed -n 's/^CapBnd:\t*//p' /proc/self/status)"
"""


@pytest.fixture
def probe(control, caught_up):
    """Return a program that tries all actions on folders that every user can change.

    The program's argument is the file for its results.
    """
    host = control.host
    host.check_output("mkdir -p /srv/open /home/open && touch /dev/open && chmod 777 /srv/open /home/open")
    host.check_output("printf %%s %s >/usr/local/bin/probe", PROBE)
    yield "sh /usr/local/bin/probe"
    host.check_output(
        "rm -rf /srv/open /home/open /dev/open /usr/local/bin/probe /tmp/probe /srv/gpu-audit/probe* /var/lib/gpu-audit/probe"
    )


def test_the_sandbox_holds(probe, control):
    def answers(text):
        return dict(line.split() for line in text.splitlines())

    host = control.host
    outside = answers(host.check_output(f"runuser -u gpu-audit -- {probe}"))
    host.check_output("rm -f /tmp/probe")
    host.check_output(f"mkdir -p $(dirname {DROP_IN})")
    lines = ["[Service]", "ExecStart=", f"ExecStart=/bin/{probe}", f"StandardOutput=truncate:{REPORTS}/probe-tells"]
    host.check_output(f"printf %%s %s >{DROP_IN} && systemctl daemon-reload", "\n".join(lines))
    try:
        host.check_output("systemctl start gpu-audit.service")
    finally:
        host.check_output(f"rm -r $(dirname {DROP_IN}) && systemctl daemon-reload")
    inside = answers(host.file(f"{REPORTS}/probe-tells").content_string)

    may = ("reports", "own_state", "tmp", "shared_memory", "credential")
    # Only the sandbox prevents these actions. Without it, the user could do them.
    kept = ("folder", "home", "device", "other_processes", "setuid")
    may_not = (*kept, "new_namespace", "vault_file")
    told = {"user": "gpu-audit", "capabilities": "0" * 16}
    assert inside == {**dict.fromkeys(may, "yes"), **dict.fromkeys(may_not, "no"), **told}
    assert {name: outside[name] for name in kept} == dict.fromkeys(kept, "yes")
    # The service has a private /tmp.
    assert not host.file("/tmp/probe").exists


@pytest.fixture(scope="module")
def failed(control, caught_up) -> Ran:
    control.host.check_output(f"printf 'gpu_audit_fail_on: [saturated]\\n' >>{SETTINGS}")
    try:
        return control.run()
    finally:
        control.host.check_output(f"sed -i /gpu_audit_fail_on/d {SETTINGS}")


def test_forbidden_verdict_fails_the_unit_but_writes_the_report(failed, control):
    assert failed.rc != 0 and (failed.result, failed.status) == ("exit-code", "2"), failed.said
    assert "saturated" in failed.said
    assert control.host.file(f"{REPORTS}/latest").linked_to == f"{REPORTS}/{failed.reports[-1]}"
    assert control.json("latest/audit.json")["summary"]["words"]["saturated"] == 1


def test_number_of_kept_reports_follows_the_inventory(failed, caught_up):
    assert len(failed.reports) == 2 and failed.reports[0] == caught_up.reports[1]


def test_second_run_of_the_role_changes_nothing(applied):
    set_up = applied.told.partition("PLAY [Set up the monitoring and the audit timer]")[2].partition("PLAY RECAP")[0]
    told = set_up[set_up.index("TASK [openfleet.gpu.gpu_audit : ") :]
    assert "TASK [openfleet.gpu.gpu_audit : Start the timer]" in told and "ok: [monitor]" in told
    assert "changed: [monitor]" not in told


def test_state_absent_removes_timer_and_service_but_no_reports(failed, control, site):
    assert "gpu-audit.service" in control.host.check_output("systemctl list-units --failed --plain --no-legend")
    # This is the relevant part of reset.yml (tests/audit/test_role.py runs all of it).
    site.play("molecule/audit/absent.yml")
    for known in ("list-units --all --plain", "list-unit-files"):
        assert control.host.run(f"systemctl {known} --no-legend 'gpu-audit*'").stdout == ""
    left = "find /etc/systemd /run/systemd /var/lib/systemd -xdev -name '*gpu-audit*'"
    assert control.host.check_output(left) == ""
    assert control.reports() == failed.reports
    assert control.host.file(f"{REPORTS}/index.html").exists
