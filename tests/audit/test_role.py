# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the role gpu_audit in a separate root directory.

systemd checks its units, and the tests run the commands of these units.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.audit.fleet_history import Device, prometheus
from tests.integration.warm_ansible import interpreter
from tests.lab import warm_playbook

ROOT = Path(__file__).parents[2]
VENV = Path(sys.executable).parents[1]
PASSWORD = "the vault's own"
#: A shell or systemd would interpret these characters without quotes.
CURRENCY = r'US$ ${HOME} 5% %h "x" \n'
UNITS = ["gpu-audit.service", "gpu-audit.timer"]

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def run(command, folder, **more):
    environment = {
        **os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_CACHE_PLUGIN": "memory", "NO_COLOR": "1",
        **more.pop("environment", {}),
    }  # fmt: skip
    return subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, timeout=600, check=False, **more
    )


def said(done):
    return " ".join((done.stdout + done.stderr).split())


class Host:
    """A folder that represents a control host.

    It contains a project and the role's files.
    """

    def __init__(self, folder, name="control"):
        self.folder, self.name = folder, name
        folder.mkdir(exist_ok=True)
        self.python = interpreter(folder / "python3")
        self.project = folder / "project"
        # systemd would interpret `%` if it were not escaped.
        self.reports = folder / "reports 100%"
        (self.project / "group_vars").mkdir(parents=True)
        self.key = folder / "vault-password"
        self.key.write_text(PASSWORD)
        self.units = folder / "root" / "etc" / "systemd" / "system"
        self.units.mkdir(parents=True)
        (self.project / "hosts.yml").write_text("all: {hosts: {a: {}}}\n")

    def know(self, url):
        """Set a server in the project.

        The password comes from a vault.
        """
        tool = [VENV / "bin" / "ansible-vault", "encrypt_string", "--vault-password-file", self.key, "--name"]
        secret = run([*tool, "secret", "of-the-server"], self.folder)
        assert secret.returncode == 0, said(secret)
        settings = {"url": url, "user": "audit", "password": "{{ secret }}"}
        (self.project / "group_vars" / "all.yml").write_text(
            secret.stdout + yaml.safe_dump({"gpu_audit_prometheus": settings, "gpu_audit_hosts": "none"})
        )

    def variables(self, more):
        """Return this host's inventory variables."""
        return {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": str(self.python),
            "gpu_audit_user": getpass.getuser(),
            "gpu_audit_manage_user": False,
            "gpu_audit_venv": str(VENV),
            "gpu_audit_project_dir": str(self.project),
            "gpu_audit_inventory": ["hosts.yml"],
            "gpu_audit_vault_password_file": str(self.key),
            "gpu_audit_arguments": ["--extra-vars=" + json.dumps({"gpu_audit_currency": CURRENCY})],
            "gpu_audit_dir": str(self.reports),
            "gpu_audit_keep": 3,
            "gpu_audit__root": str(self.folder / "root"),
            **more,
        }

    def apply(self, *options, playbook="", **variables):
        return apply({self: variables}, *options, playbook=playbook)

    def texts(self):
        return {name: (self.units / name).read_text() for name in UNITS}

    def unit(self, name):
        """Return a unit's settings: lists of values by name."""
        found = {}
        for line in (self.units / name).read_text().splitlines():
            if "=" in line and not line.startswith("#"):
                key, _equals, value = line.partition("=")
                found.setdefault(key, []).append(value)
        return found


def apply(hosts, *options, playbook=""):
    """Run the role or a playbook on hosts. Each host has its own variables."""
    folder = next(iter(hosts)).folder
    play = [{"hosts": "gpu_audit", "gather_facts": False, "roles": ["openfleet.gpu.gpu_audit"]}]
    (folder / "play.yml").write_text(yaml.safe_dump(play))
    named = {host.name: host.variables(variables) for host, variables in hosts.items()}
    (folder / "inventory.yml").write_text(yaml.safe_dump({"gpu_audit": {"hosts": named}, "gpu_hosts": {}}))
    command = [*warm_playbook.COMMAND, "-i", folder / "inventory.yml", *options]
    # Use one directory for all runs, which are forks of one process.
    home = {"ANSIBLE_HOME": os.environ.get("ANSIBLE_HOME", str(folder / "home"))}
    return run([*command, ROOT / playbook if playbook else folder / "play.yml"], folder, cwd=ROOT, environment=home)


def changed(done, host):
    """Check that no task failed, and return how many tasks changed the host."""
    (count,) = re.findall(rf"^{host.name} +: ok=\d+ +changed=(\d+) +unreachable=0 +failed=0", done.stdout, re.MULTILINE)
    return int(count)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with prometheus([Device("a", 0)], 3, tmp_path_factory.mktemp("server")) as url:
        yield url


#: The service's umask for each mode of the reports' directory.
UMASKS = {"0750": "0027", "2770": "0007", "755": "0022"}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory, server):
    """Return hosts on which the role has run once.

    One run covers all hosts, each with its own variables.
    """
    folder = tmp_path_factory.mktemp("hosts")
    made = {
        name: Host(folder / name, name) for name in ("control", "timed", "left", *(f"mode_{mode}" for mode in UMASKS))
    }
    made["control"].know(server)
    variables = {host: {} for host in made.values()}
    for mode in UMASKS:
        variables[made[f"mode_{mode}"]] = {"gpu_audit_dir_mode": mode}
    done = apply(variables)
    assert done.returncode == 0, said(done)
    return made


@pytest.fixture(scope="module")
def installed(hosts):
    return hosts["control"]


@pytest.fixture(scope="module")
def again(hosts):
    """Repeat the role on hosts with different later runs.

    The later runs are a dry run with another time of the timer, a run with that time, a run without changes, and a
    removal.
    """
    timed, left = hosts["timed"], hosts["left"]
    before = timed.texts()
    dry = timed.apply("--check", gpu_audit_on_calendar="daily")
    assert dry.returncode == 0 and changed(dry, timed) == 1, said(dry)
    assert timed.texts() == before
    (left.reports / "index.html").write_text("mine")
    stamp = left.folder / "root" / "var" / "lib" / "systemd" / "timers" / "stamp-gpu-audit.timer"
    stamp.parent.mkdir(parents=True)
    stamp.touch()
    variables = {hosts["control"]: {}, timed: {"gpu_audit_on_calendar": "daily"}, left: {"gpu_audit_state": "absent"}}
    done = apply(variables)
    assert done.returncode == 0, said(done)
    return done, before, stamp


def systemd(*arguments):
    return run(["systemd-analyze", *arguments], Path("/tmp"))


def test_systemd_has_nothing_to_say_against_the_units(installed):
    done = systemd("verify", "--man=no", *[installed.units / name for name in UNITS])
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "gpu-audit" in line]
    assert done.returncode == 0 and ours == []


def test_it_may_do_little(installed):
    done = systemd("security", "--offline=true", "--no-pager", installed.units / "gpu-audit.service")
    (exposure,) = re.findall(r"exposure level for gpu-audit\.service: ([0-9.]+)", done.stdout + done.stderr)
    # systemd's scale ends at 10, and a value up to 4 is "OK". The remaining exposure is the network.
    assert float(exposure) < 2.5
    unit = installed.unit("gpu-audit.service")
    assert unit["User"] == [getpass.getuser()] and unit["ProtectSystem"] == ["strict"]


def test_the_timer_catches_up(installed):
    timer = installed.unit("gpu-audit.timer")
    assert timer["Persistent"] == ["true"] and timer["OnCalendar"] == ["Wed *-*-* 06:00:00"]
    assert timer["RandomizedDelaySec"] == ["30m"] and timer["WantedBy"] == ["timers.target"]


def test_what_the_service_runs_makes_reports(installed):
    """Run the command as systemd parses it.

    systemd handles quotes, `%%`, `$$` and one variable.
    """
    unit = installed.unit("gpu-audit.service")
    credentials = installed.folder / "credentials"
    credentials.mkdir()
    (name, _colon, source) = unit["LoadCredential"][0].partition(":")
    shutil.copy(source, credentials / name)
    (line,) = unit["ExecStart"]
    words = [
        re.sub(
            r"\$\$|\$\{(\w+)\}|%%",
            lambda found: str(credentials) if found[1] == "CREDENTIALS_DIRECTORY" else found[0][0],
            word,
        )
        for word in shlex.split(line)
    ]
    assert words[-1] == "openfleet.gpu.audit"
    (folder,) = unit["WorkingDirectory"]
    for _time in range(2):
        done = run(words, installed.folder, cwd=folder)
        assert done.returncode == 0, said(done)
    data = json.loads((installed.reports / "latest" / "audit.json").read_text())
    assert data["summary"]["still"] == data["summary"]["findings"] == 1
    assert data["currency"] == CURRENCY and len(list(installed.reports.glob("*Z"))) == 2
    assert (installed.reports / "index.html").exists()
    # The service can write only to the reports' directory.
    assert [json.loads(path).replace("%%", "%") for path in unit["ReadWritePaths"]] == [str(installed.reports)]
    assert "of-the-server" not in said(done)


def test_the_second_run_changes_nothing(installed, again):
    done, _before, _stamp = again
    assert changed(done, installed) == 0, said(done)


def test_another_time_changes_the_timer_alone(hosts, again):
    _done, before, _stamp = again
    after = hosts["timed"].texts()
    assert [name for name in UNITS if after[name] != before[name]] == ["gpu-audit.timer"]


def test_absent_takes_the_units_away_and_leaves_the_reports(hosts, again):
    host, (_done, _before, stamp) = hosts["left"], again
    assert list(host.units.iterdir()) == [] and (host.reports / "index.html").read_text() == "mine"
    # If the stamp existed, the timer would run at once after the next installation.
    assert not stamp.exists()
    done = host.apply(gpu_audit_state="absent")
    assert done.returncode == 0 and changed(done, host) == 0, said(done)


def test_the_fleets_playbooks_bring_it_and_take_it_away(tmp_path):
    host = Host(tmp_path)
    # An inventory without a GPU host must work too.
    done = host.apply(playbook="playbooks/site.yml")
    assert done.returncode == 0, said(done)
    assert sorted(path.name for path in host.units.iterdir()) == UNITS
    done = host.apply(playbook="playbooks/reset.yml")
    assert done.returncode == 0, said(done)
    assert list(host.units.iterdir()) == [] and host.reports.is_dir()


def test_site_tells_of_a_bad_variable_before_anything_changes(tmp_path):
    host = Host(tmp_path)
    done = host.apply(playbook="playbooks/site.yml", gpu_audit_keep=0, gpu_audit_vault_password_file="vault")
    assert done.returncode == 2
    wrong = "control: gpu_audit_keep: at least one report is kept: write 1 or more. gpu_audit_vault_password_file: "
    assert wrong in said(done)
    assert "PLAY [Plan the monitoring and the audit]" in done.stdout
    assert "TASK [openfleet.gpu.gpu_audit" not in done.stdout.partition("PLAY [Apply")[2]


@pytest.mark.parametrize("mode", UMASKS)
def test_reports_are_for_those_who_may_look_into_their_directory(hosts, mode):
    host = hosts[f"mode_{mode}"]
    assert host.unit("gpu-audit.service")["UMask"] == [UMASKS[mode]]
    assert host.reports.stat().st_mode & 0o7777 == int(mode, 8)


REFUSED = [
    ({"gpu_audit_on_calendar": "Mondays"}, "gpu_audit_on_calendar: "),
    ({"gpu_audit_keep": 0}, "gpu_audit_keep: at least one report is kept"),
    ({"gpu_audit_random_delay": "a while"}, "gpu_audit_random_delay, gpu_audit_timeout: "),
    ({"gpu_audit_timeout": "2 hrs, or so"}, "gpu_audit_random_delay, gpu_audit_timeout: "),
    ({"gpu_audit_dir": "reports"}, "gpu_audit_dir: systemd needs absolute paths"),
    ({"gpu_audit_dir_mode": "u=rwx"}, "gpu_audit_dir_mode: write it in octal digits"),
    ({"gpu_audit_user": "root", "gpu_audit_manage_user": True}, "gpu_audit_user: root cannot be created"),
    ({"gpu_audit_venv": "/nowhere"}, "/nowhere/bin/ansible-playbook does not exist. Install Ansible"),
    (
        {"gpu_audit_project_dir": "/nowhere", "gpu_audit_vault_password_file": "/none"},
        "/nowhere, /none does not exist",
    ),
]


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """Run all cases at once, each on its own host.

    Returns the completed process and the hosts.
    """
    folder = tmp_path_factory.mktemp("refused")
    made = [Host(folder / f"case_{number}", f"case_{number}") for number in range(len(REFUSED))]
    done = apply({host: variables for host, (variables, _message) in zip(made, REFUSED)})
    assert done.returncode == 2, said(done)
    return done, made


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=[message for _variables, message in REFUSED])
def test_what_cannot_work_is_said_before_anything_is_written(refused, number):
    done, made = refused
    host, (_variables, message) = made[number], REFUSED[number]
    assert f"fatal: [{host.name}]: FAILED!" in done.stdout
    assert f"{host.name}: {message}" in said(done)
    assert list(host.units.iterdir()) == [] and not host.reports.exists()
