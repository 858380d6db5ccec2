# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that systemd is reloaded only after a unit file has changed.

A reload of systemd can detach GPUs from running containers.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.module_utils.install.files import Installation

ROOT = Path(__file__).resolve().parents[3]
UNIT = "etc/systemd/system/one.service"


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.setattr(Installation, "is_host", True)
    called = []

    def call(command):
        called.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    installation = Installation(tmp_path, False, call)
    installation.called = called
    return installation


@pytest.mark.parametrize(
    ("change", "reloads"),
    [
        (lambda target: target.write("etc/openfleet-gpu/layout.json", b"[]"), False),
        (lambda target: target.remove("etc/openfleet-gpu/layout.json"), False),
        (lambda target: target.write(UNIT, b"[Unit]"), True),
        (lambda target: target.write(UNIT + ".d/one.conf", b"[Service]"), True),
        (lambda target: target.write("etc/containers/systemd/one.container", b"[Container]"), True),
    ],
    ids=["file", "nothing", "unit", "drop-in", "quadlet"],
)
def test_an_installation_reloads_systemd_only_for_unit_files(target, change, reloads):
    change(target)
    target.reload()
    assert target.reloads is reloads
    assert target.called == [["systemctl", "daemon-reload"]] * reloads


def test_an_installation_reloads_systemd_for_a_removed_unit_and_after_an_interrupted_run(target):
    target.write(UNIT, b"[Unit]")
    for again in (False, True):
        later = Installation(target.root, False, target.call)
        if again:
            later.mark("run/unfinished").__bool__()
            (target.root / "run").mkdir()
            (target.root / "run/unfinished").touch()
            assert later.mark("run/unfinished")
        else:
            assert later.remove(UNIT)
        target.called.clear()
        later.reload()
        assert target.called == [["systemctl", "daemon-reload"]]


def test_enable_and_disable_never_reload_by_themselves():
    """`systemctl enable` and `disable` reload systemd even if they change nothing."""
    pattern = re.compile(r"""["'](?:enable|disable)["'],(?! *"--no-reload")""")
    for path in (ROOT / "plugins").rglob("*.py"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if "systemctl" in line and pattern.search(line) and "self._systemctl)" not in line:
                # These calls go through the method `Installation.systemctl`, which adds the option `--no-reload`.
                assert "target.systemctl(" in line, "%s:%d: %s" % (path, number, line)


def test_every_reload_goes_through_one_mechanism():
    """If other code reloaded systemd, it could detach GPUs from containers without a check."""
    allowed = {"plugins/module_utils/systemd_reload.py"}
    paths = [path for folder in ("plugins", "roles", "playbooks") for path in (ROOT / folder).rglob("*")]
    sources = [path for path in paths if path.suffix in (".py", ".yml", ".yaml", ".j2", ".sh")]
    assert len(sources) > 500
    found = set()
    for path in sources:
        text = path.read_text(encoding="utf-8")
        if re.search(r"daemon_reload\s*:|daemon-reexec|[\"'\[, ]daemon-reload[\"'\],]", text):
            found.add(path.relative_to(ROOT).as_posix())
    assert found == allowed


# For each file that reloads systemd, the function with which a plan checks the reload first.
RELOADERS = {
    "plugins/module_utils/install/files.py": ("plugins/module_utils/install/sources.py", "systemd_reload.guard("),
    "plugins/module_utils/install/exporter/host.py": (
        "plugins/module_utils/install/sources.py",
        "systemd_reload.guard(",
    ),
    "plugins/module_utils/toolkit/apply.py": ("plugins/modules/container_toolkit.py", "toolkit.guard("),
    "plugins/module_utils/techniques/limited_folder.py": (
        "plugins/module_utils/techniques/mps/host.py",
        "limited_folder(",
    ),
    "plugins/module_utils/techniques/mps/host.py": (
        "plugins/module_utils/techniques/mps/service.py",
        "reload_disturbs(",
    ),
    "plugins/module_utils/techniques/vgpu/host.py": (
        "plugins/module_utils/techniques/vgpu/service.py",
        "reload_disturbs(",
    ),
    "plugins/modules/systemd_reload.py": ("plugins/modules/systemd_reload.py", "systemd_reload.guard("),
}


def test_every_file_that_reloads_systemd_is_guarded():
    files = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in (ROOT / "plugins").rglob("*.py")
    }
    assert {path for path, text in files.items() if "systemd_reload.RELOAD" in text} == set(RELOADERS)
    for guard, call in RELOADERS.values():
        assert call in files[guard], guard


def tasks_of(data):
    for task in data or []:
        yield task
        for key in ("block", "rescue", "always"):
            yield from tasks_of(task.get(key))


def test_roles_reload_systemd_only_after_a_change():
    reloads = 0
    for path in [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("roles/*/handlers/*.yml")]:
        for task in tasks_of(yaml.safe_load(path.read_text(encoding="utf-8"))):
            module = task.get("openfleet.gpu.systemd_reload")
            if module is None:
                continue
            assert "on_busy" in module and "busy_timeout" in module, "%s: %s" % (path, task["name"])
            if module.get("reload", True):
                reloads += 1
                if path.parent.name != "handlers":
                    assert re.search("is changed|NeedDaemonReload", str(task.get("when"))), "%s: %s" % (
                        path,
                        task["name"],
                    )
            else:
                assert "units" in module or path.name == "packages.yml", "%s: %s" % (path, task["name"])
    assert reloads >= 4
