# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow how-to pages word for word on simulated hosts."""

from __future__ import annotations

import shlex
import subprocess

import pytest
import yaml

from tests.how_to import blocks, commands
from tests.integration.simulated_fleet import Fleet

BEFORE = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "1g.10gb", "count": 7}]}]
AFTER = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]


class Site:
    """An inventory in a git repository, with a directory for each host's variables."""

    def __init__(self, fleet, folder, directory):
        self.fleet, self.folder = fleet, folder
        self.directory = directory
        (folder / "host_vars").mkdir(parents=True)
        hosts = {}
        for name in fleet.hosts:
            hosts[name] = {key: value for key, value in fleet.variables(name, None).items() if key != "gpu_layout"}
        (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu_hosts": {"hosts": hosts}}))
        self.git("init", "--quiet")

    def git(self, *arguments):
        who = ("-c", "user.name=operator", "-c", "user.email=operator@example.org")
        done = subprocess.run(["git", *who, *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def commit(self, host, layout, subject):
        (self.folder / "host_vars" / f"{host}.yml").write_text(yaml.safe_dump({"gpu_layout": layout}))
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", subject)

    def follow(self, command):
        """Run a command of a page. Return its output in one line."""
        program, *arguments = shlex.split(command.replace("\\\n", ""))
        if program == "git":
            return self.git(*arguments)
        assert program == "ansible-playbook" and arguments[:2] == ["-i", "hosts.yml"]
        self.directory.mkdir(parents=True, exist_ok=True)
        # The usual directory of pynvml belongs to this machine. The hosts share another one, so they change it one after
        # the other.
        more = ("--forks=1", "-e", f"gpu_layout_nvml_directory={self.directory}")
        done = self.fleet.run(arguments[2], self.folder / "hosts.yml", *more, *arguments[3:])
        assert done.returncode == 0, done.stdout + done.stderr
        return " ".join(done.stdout.split())


@pytest.fixture
def site(host, library, tmp_path):
    made = Site(Fleet(tmp_path, library, ["one", "two"]), tmp_path / "inventory", tmp_path / "openfleet-gpu" / "python")
    for name in ("one", "two"):
        made.commit(name, BEFORE, f"layout of {name}")
    made.follow("ansible-playbook -i hosts.yml openfleet.gpu.site")
    return made


def test_undo_a_change(site):
    before = site.fleet.seen()
    site.commit("one", AFTER, "two large instances")
    site.follow("ansible-playbook -i hosts.yml openfleet.gpu.site")
    changed = site.fleet.seen()
    assert changed["one"] == [("3g.40gb", 0), ("3g.40gb", 4)]
    find, revert, check, change = commands("undo-a-change.md", "$")
    assert "two large instances" in site.follow(find)
    site.follow(revert)
    site.follow(check)
    assert site.fleet.seen() == changed
    said = site.follow(change)
    assert site.fleet.seen() == before
    (expected,) = blocks("undo-a-change.md", "text")
    assert expected.strip() in said


def test_uninstall(site):
    before = site.fleet.seen()
    check, remove, turn_off = commands("uninstall.md", "$")
    (expected,) = blocks("uninstall.md", "text")
    site.follow(check)
    assert site.directory.exists()
    assert expected.strip() in site.follow(remove)
    assert site.fleet.seen() == before and not site.directory.exists()
    assert not any((host.folder / "state.d").exists() for host in site.fleet.hosts.values())
    site.follow(turn_off)
    assert site.fleet.seen() == {"one": [], "two": []}
