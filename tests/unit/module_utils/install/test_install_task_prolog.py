# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the installation of the TaskProlog, and its requirements for slurm.conf."""

from __future__ import annotations

import json
import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders.slurm import DEVICES
from ansible_collections.openfleet.gpu.plugins.module_utils.install.files import Installation, InstallError
from ansible_collections.openfleet.gpu.plugins.module_utils.install.layout_boot import COMMAND
from ansible_collections.openfleet.gpu.plugins.module_utils.install.slurm_task_prolog import (
    PROGRAM,
    UNFINISHED,
    UNIT_FILE,
    body,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.slurm.task_devices import SETTINGS

CAPABILITIES = "/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22"
LINES = [
    f"NodeName=gpu-a AutoDetect=off Name=gpu Type=3g.40gb MultipleFiles=/dev/nvidia0,{CAPABILITIES}",
    "NodeName=gpu-a AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia1",
]
UUIDS = ["MIG-a", "GPU-1"]
REQUEST = {
    "state": "present", "node": "gpu-a", "gres_conf": LINES, "gres_file": "", "types": [], "devices": UUIDS, "in_use": True,
    "program": "#!/bin/sh\n", "unit": "[Service]\n",
}  # fmt: skip


class Host(Installation):
    """A host on which systemctl, scontrol and gpu-layout are replaced."""

    is_host = True

    def __init__(self, root, task_prolog="(null)", uuids=UUIDS, check=False):
        super().__init__(root, check, self.answer)
        self.task_prolog, self.uuids, self.commands = task_prolog, uuids, []

    def answer(self, command, **_options):
        self.commands.append(command)
        if command[:2] == ["systemctl", "restart"] or "slurm-devices" in command:
            settings = json.loads((self.root / SETTINGS).read_text())
            rows = [dict(slot, uuid=uuid) for slot, uuid in zip(settings["slots"], self.uuids, strict=True)]
            (self.root / SETTINGS).write_text(json.dumps(dict(settings, slots=rows), indent=1))
            (self.root / DEVICES).write_text("".join(self.uuids))
        failed = command[0] == "scontrol" and self.task_prolog is None
        return subprocess.CompletedProcess(
            command, int(failed), f"Prolog = (null)\nTaskProlog              = {self.task_prolog}\n", ""
        )


@pytest.fixture
def root(tmp_path):
    (tmp_path / COMMAND).parent.mkdir(parents=True)
    (tmp_path / COMMAND).write_text("")
    for number in (0, 1):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"GPU UUID: \t GPU-{number}\nDevice Minor: \t {number}\n")
    return tmp_path


def install(root, host=None, **changes):
    host = host or Host(root)
    return body(dict(REQUEST, **changes), host, None), host


def test_installs_the_program_the_unit_and_the_devices(root):
    result, host = install(root)
    assert result["devices"] == UUIDS
    assert (root / PROGRAM).stat().st_mode & 0o777 == 0o755
    slot = {"type": "h100", "gpu": "GPU-1", "files": ["/dev/nvidia1"], "uuid": "GPU-1"}
    assert json.loads((root / SETTINGS).read_text())["slots"][1] == slot
    verbs = [command[1] for command in host.commands if command[0] == "systemctl"]
    # systemd starts the service with slurmd only if this link exists.
    assert verbs.index("enable") < verbs.index("daemon-reload") < verbs.index("restart")
    assert not (root / UNFINISHED).exists()
    again = Host(root)
    assert install(root, again)[0] == result and not again.done


def test_recorded_uuids_of_the_same_devices_are_kept(root):
    """Check that devices with the same UUIDs keep their numbers."""
    install(root)
    before = (root / SETTINGS).read_text()
    assert '"uuid": "MIG-a"' in before
    assert not install(root)[1].done and (root / SETTINGS).read_text() == before


def test_lines_that_slurm_does_not_use_yet(root):
    _result, host = install(root, in_use=False)
    assert [f"/{COMMAND}", "slurm-devices", "--common"] in host.commands
    assert not any(command[:2] == ["systemctl", "restart"] for command in host.commands)


@pytest.mark.parametrize("uuids", [["MIG-b", "GPU-1"], ["", "GPU-1"]])
def test_other_devices_than_planned_are_refused(root, uuids):
    with pytest.raises(InstallError, match=r"the device 0 is (MIG-b|missing) now, and the plan has MIG-a.* Run again"):
        install(root, Host(root, uuids=uuids))
    # The mark makes the next run repeat the failed installation.
    assert (root / UNFINISHED).exists()


def test_missing_command_is_refused_before_any_change(root):
    (root / COMMAND).unlink()
    with pytest.raises(InstallError, match="Set gpu_layout_restore_at_boot: true"):
        install(root)
    assert not (root / PROGRAM).exists()


def test_lines_are_read_from_the_file(root):
    (root / "gres.conf").write_text("\n".join(LINES))
    install(root, gres_conf=None, gres_file="/gres.conf", devices=[])
    assert len(json.loads((root / SETTINGS).read_text())["slots"]) == 2
    with pytest.raises(InstallError, match=r"/missing\.conf: it cannot be read, or it is empty"):
        install(root, gres_conf=None, gres_file="/missing.conf")


@pytest.mark.parametrize(
    ("task_prolog", "advice"),
    [
        ("(null)", f"Add TaskProlog=/{PROGRAM} to slurm.conf, and run scontrol reconfigure."),
        (f"/{PROGRAM}", ""),
        ("/etc/slurm/site", ""),
        ("/etc/slurm/other", f"slurm.conf has TaskProlog=/etc/slurm/other. Let this program end with: exec /{PROGRAM}"),
        (None, ""),
    ],
)
def test_advice_for_slurm_conf(root, task_prolog, advice):
    (root / "etc/slurm").mkdir(parents=True)
    (root / "etc/slurm/site").write_text(f"#!/bin/sh\nexec /{PROGRAM}\n")
    (root / "etc/slurm/other").write_text("#!/bin/sh\n")
    assert install(root, Host(root, task_prolog))[0]["advice"] == advice


@pytest.mark.parametrize(("task_prolog", "kept"), [("(null)", False), (f"/{PROGRAM}", True), (None, True)])
def test_removal_keeps_a_program_that_slurm_runs(root, task_prolog, kept):
    install(root)
    result = body({"state": "absent"}, Host(root, task_prolog), None)
    assert (root / PROGRAM).exists() == kept
    assert bool(result["advice"]) == kept
    assert not any((root / path).exists() for path in (UNIT_FILE, SETTINGS, DEVICES))
    again = Host(root)
    assert body({"state": "absent"}, again, None)["advice"] == "" and bool(again.done) == kept


def test_check_mode_changes_nothing(root):
    result, host = install(root, Host(root, check=True))
    assert result["devices"] == [] and host.done
    assert not (root / PROGRAM).exists() and [command[0] for command in host.commands] == ["scontrol"]


def test_lines_of_included_files_are_read(root):
    """Read included files, as slurmd does."""
    (root / "etc/slurm").mkdir(parents=True)
    (root / "etc/slurm/gres.conf").write_text("# GPUs\nInclude more.conf\n")
    (root / "etc/slurm/more.conf").write_text("NodeName=gpu-b Name=gpu File=/dev/nvidia0\n" + "\n".join(LINES) + "\n")
    result, _host = install(root, gres_conf=None, gres_file="/etc/slurm/gres.conf")
    assert result["devices"] == UUIDS
    (root / "etc/slurm/more.conf").write_text("NodeName=gpu-b Name=gpu File=/dev/nvidia0\n")
    with pytest.raises(InstallError, match="no line is for GPUs of the node gpu-a"):
        install(root, gres_conf=None, gres_file="/etc/slurm/gres.conf")
