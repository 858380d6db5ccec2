# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What roles/dcgm_exporter/files/exporter_install does with a host's services and packages, which stand-in commands play."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1]),
    str(Path(__file__).resolve().parents[3] / "roles/dcgm_exporter/files"),
]
from exporter_installer import DOCKER, EMBEDDED, ETC, UNIT, Installer, archive, files


class Host(Installer):
    """A host that systemd runs. What is asked of commands is noted in `calls`."""

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
        """Those since the last time that was asked, but for questions."""
        said = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.write_text("")
        return [line for line in said if " is-" not in line and not line.startswith("journalctl")]


@pytest.fixture
def host(tmp_path, monkeypatch):
    return Host(tmp_path, monkeypatch)


RELOAD, RESTART = "systemctl daemon-reload", "systemctl restart dcgm-exporter.service"


def test_what_a_run_wrote_that_was_cut_off_is_known_to_the_service_after_the_next(host):
    host(DOCKER)
    assert host.calls == [RELOAD, RESTART]
    changed = dict(DOCKER, files={**DOCKER["files"], UNIT: {"content": "loopback\n", "mode": "0644"}})
    # It ends between the files and the restart.
    host.command("systemctl", 'case "$1" in is-enabled) echo enabled;; daemon-reload) exit 1;; esac')
    host(changed, status=1)
    assert (host.root / UNIT).read_text() == "loopback\n"
    host.command("systemctl", 'case "$1" in is-enabled) echo enabled;; esac')
    assert host.calls == [RELOAD]
    said = host(changed, "--check")
    assert said["changed"] and host.calls == []
    assert host(changed)["done"] == said["done"] == [RELOAD, RESTART]
    assert host.calls == [RELOAD, RESTART]
    assert host(changed)["changed"] is False and host.calls == []


def test_a_restart_that_fails_is_tried_again(host):
    host.command("systemctl", 'case "$1" in is-enabled) echo enabled;; restart) exit 1;; esac')
    host(DOCKER, status=1)
    host.command("systemctl", 'case "$1" in is-enabled) echo enabled;; esac')
    assert host.calls == [RELOAD, RESTART]
    host(DOCKER)
    assert host.calls == [RELOAD, RESTART]


def test_nothing_is_written_where_a_password_cannot_be_used(host, tmp_path):
    before = files(host.root)
    assert "72 bytes" in host(dict(EMBEDDED, users={"a": "x" * 73}, embedded=archive(tmp_path)), status=1)
    assert files(host.root) == before == {}


def test_a_renewed_setting_is_written_after_the_mark(host):
    """Nothing but the mark is there where already the first file cannot be written."""
    (host.root / ETC / "counters.csv").mkdir(parents=True)
    (host.root / ETC / "counters.csv/in the way").write_text("")
    host(DOCKER, status=1)
    assert (host.root / ETC / "restart-pending").exists() and not (host.root / UNIT).exists()
