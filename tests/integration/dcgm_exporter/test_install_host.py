# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test services and packages of the module dcgm_exporter with stand-in commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.install.exporter import refusals
from ansible_collections.openfleet.gpu.plugins.module_utils.install.files import InstallError
from tests.integration.exporter_installer import DOCKER, EMBEDDED, ETC, LIB, UNIT, Installer, archive, files


class Host(Installer):
    """A host with systemd.

    `calls` records calls of the stand-in commands.
    """

    def __init__(self, folder: Path, monkeypatch) -> None:
        super().__init__(folder / "root")
        (self.root / "run/systemd/system").mkdir(parents=True)
        self.programs, self.log = folder / "bin", folder / "calls"
        self.programs.mkdir()
        monkeypatch.setenv("PATH", f"{self.programs}:{os.environ['PATH']}")
        self.command("systemctl", 'case "$1" in is-enabled) echo enabled;; esac')
        self.command("journalctl", "")

    def command(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> "{self.log}"\n{script}\n')
        path.chmod(0o755)

    @property
    def calls(self):
        """Return the commands since the last call, except queries."""
        said = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.write_text("")
        return [line for line in said if " is-" not in line and not line.startswith("journalctl")]


@pytest.fixture
def host(tmp_path, monkeypatch):
    return Host(tmp_path, monkeypatch)


RELOAD, RESTART = "systemctl daemon-reload", "systemctl restart dcgm-exporter.service"


def test_service_restarts_for_files_of_an_interrupted_run(host):
    host(DOCKER)
    assert host.calls == [RELOAD, RESTART]
    changed = dict(DOCKER, files={**DOCKER["files"], UNIT: {"content": "loopback\n", "mode": "0644"}})
    # The run fails after it wrote the files, so it does not restart the service.
    host.command("systemctl", 'case "$1" in is-enabled) echo enabled;; daemon-reload) exit 1;; esac')
    host(changed, failed=True)
    assert (host.root / UNIT).read_text() == "loopback\n"
    host.command("systemctl", 'case "$1" in is-enabled) echo enabled;; esac')
    assert host.calls == [RELOAD]
    said = host(changed, "--check")
    assert said["changed"] and host.calls == []
    assert host(changed)["done"] == said["done"] == [RELOAD, RESTART]
    assert host.calls == [RELOAD, RESTART]
    assert host(changed)["changed"] is False and host.calls == []


def test_failed_restart_is_retried(host):
    host.command("systemctl", 'case "$1" in is-enabled) echo enabled;; restart) exit 1;; esac')
    host(DOCKER, failed=True)
    host.command("systemctl", 'case "$1" in is-enabled) echo enabled;; esac')
    assert host.calls == [RELOAD, RESTART]
    host(DOCKER)
    assert host.calls == [RELOAD, RESTART]


def test_unusable_password_is_refused_before_any_change(host, tmp_path):
    before = files(host.root)
    assert "72 bytes" in host(dict(EMBEDDED, users={"a": "x" * 73}, embedded=archive(tmp_path)), failed=True)
    assert files(host.root) == before == {}


def test_settings_are_written_after_the_mark(host):
    """Write the mark `restart-pending` first.

    If the module cannot write the first file, only this mark exists.
    """
    (host.root / ETC / "counters.csv").mkdir(parents=True)
    (host.root / ETC / "counters.csv/in the way").write_text("")
    host(DOCKER, failed=True)
    assert (host.root / ETC / "restart-pending").exists() and not (host.root / UNIT).exists()


# --- requests that the module refuses -------------------------------------------------------------


@pytest.mark.parametrize("path", [f"/{ETC}/site.key", f"/etc/../{LIB}/site.key", "/srv/link/site.key"])
@pytest.mark.parametrize("state", ["present", "absent"])
def test_key_of_the_site_in_the_roles_directory_is_refused_and_stays(host, path, state):
    key = host.root / ETC / "site.key"
    key.parent.mkdir(parents=True)
    key.write_text("the only one")
    (host.root / "srv").mkdir()
    (host.root / "srv/link").symlink_to(key.parent)
    said = host(dict(DOCKER, state=state, host_files=[path]), failed=True)
    assert path in said and "the role deletes files that it did not write" in said
    assert key.read_text() == "the only one" and [entry.name for entry in key.parent.iterdir()] == ["site.key"]
    host(dict(DOCKER, host_files=["/etc/openfleet-gpu/exporter.key"]))


def test_metrics_folder_in_a_deleted_directory_is_refused(host):
    assert f"{ETC}/metrics" in host(dict(DOCKER, directories=[f"{ETC}/metrics"]), failed=True)


# `127.1` is not a valid literal address, but the host's resolver maps it to a loopback address.
@pytest.mark.parametrize(
    "address, refused", [("127.1", True), ("127.0.0.1", False), ("::1", False), ("localhost", False)]
)
def test_name_that_resolves_to_loopback_is_refused(host, address, refused):
    said = host(dict(DOCKER, address=address), failed=refused)
    if refused:
        assert "127.0.0.1 on this host" in said and "/etc/hosts" in said
        assert files(host.root) == {}


def test_debians_hosts_line_is_refused_next_to_a_correct_one(monkeypatch):
    found = {"gpu-01": ["127.0.1.1"], "gpu-02": ["10.0.0.7", "::1"], "gpu-03": ["10.0.0.7", "fe80::7%eth0"]}
    monkeypatch.setattr(
        refusals.socket, "getaddrinfo", lambda name, *_, **__: [(0, 0, 0, "", (address, 0)) for address in found[name]]
    )
    for name, wrong in (("gpu-01", "gpu-01 is 127.0.1.1"), ("gpu-02", "gpu-02 is ::1")):
        with pytest.raises(InstallError, match=wrong):
            refusals.refuse_address(name)
    refusals.refuse_address("gpu-03")


QUADLET = "etc/containers/systemd/dcgm-exporter.container"
PODMAN = dict(DOCKER, files={QUADLET: {"content": "[Container]\n", "mode": "0644"}})


@pytest.mark.parametrize(
    "version, says", [("4.3.1", "podman version 4.3.1"), ("3.4", "3.4"), ("4.4.0", ""), ("5.0.1", "")]
)
def test_podman_without_quadlet_generator_gets_no_quadlet(host, version, says):
    host.command("podman", f"echo podman version {version}")
    said = host(PODMAN, failed=bool(says))
    assert (host.root / QUADLET).exists() is not bool(says)
    if says:
        assert says in said and "4.4" in said


def test_missing_unit_does_not_block_removal(host):
    (host.root / QUADLET).parent.mkdir(parents=True)
    (host.root / QUADLET).write_text("[Container]\n")
    host.command("systemctl", '[ "$1" != stop ] || { echo "Failed to stop $2: Unit $2 not loaded." >&2; exit 5; }')
    assert host(dict(DOCKER, state="absent"))["changed"] is True
    assert files(host.root) == {}


def test_unit_that_does_not_stop_blocks_removal(host):
    (host.root / QUADLET).parent.mkdir(parents=True)
    (host.root / QUADLET).write_text("[Container]\n")
    host.command("systemctl", '[ "$1" != stop ] || { echo "Failed to stop $2: Connection timed out" >&2; exit 1; }')
    assert "timed out" in host(dict(DOCKER, state="absent"), failed=True)
    assert (host.root / QUADLET).exists()


def test_unit_replaced_by_a_quadlet_leaves_no_link(host):
    host.command("podman", "echo podman version 5.0.1")
    host(DOCKER)
    link = host.root / "etc/systemd/system/multi-user.target.wants/dcgm-exporter.service"
    link.parent.mkdir()
    link.symlink_to("/" + UNIT)
    host(PODMAN)
    assert not link.is_symlink()


# --- passwords of an index ------------------------------------------------------------------------


def test_password_of_an_index_is_in_no_command_and_no_message(host, tmp_path, monkeypatch):
    pip = tmp_path / "modules/pip"
    pip.mkdir(parents=True)
    (pip / "__init__.py").touch()
    (pip / "__main__.py").write_text(
        "import os, pathlib, sys\n"
        "index = os.environ['PIP_INDEX_URL']\n"
        f"pathlib.Path({str(tmp_path / 'noted')!r}).write_text(index + ' ' + ' '.join(sys.argv))\n"
        "sys.exit('no answer from ' + index)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(pip.parent))
    index = "https://fleet:s3cret@index.example.org/simple"
    embedded = {"source": "index", "stamp": "one", "requirements": "", "index_url": index, "archive": ""}
    said = host(dict(EMBEDDED, embedded=embedded), failed=True)
    given, _, arguments = (tmp_path / "noted").read_text().partition(" ")
    assert given == index and "s3cret" not in arguments
    assert "no answer from https://***@index.example.org/simple" in said and "s3cret" not in said
