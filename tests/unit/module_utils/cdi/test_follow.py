# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how services and CDI specifications follow a change of devices.

tests/lab/stand_in_nvidia_ctk.py replaces nvidia-ctk and runs as a process. The replies for systemctl have the format of
systemd 252. tests/lab/test_follow.py uses the real systemctl.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.cdi import nvidia_ctk
from ansible_collections.openfleet.gpu.plugins.module_utils.cdi.follow import (
    BOOT,
    REFRESH,
    SLURM_DEVICES,
    Renew,
    Restart,
    Seen,
    Unit,
    follow,
    predict,
    steps,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.change.pending import PendingFollowUp
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FollowError
from ansible_collections.openfleet.gpu.plugins.module_utils.processes.command import run_tool

STAND_IN = Path(__file__).resolve().parents[3] / "lab" / "stand_in_nvidia_ctk.py"
WHOLE = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aa)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bb)\n"
SPLIT = WHOLE + "  MIG 3g.40gb     Device  0: (UUID: MIG-cc)\n  MIG 1g.10gb     Device  1: (UUID: MIG-dd)\n"


def unit(name, active="active", enabled="enabled", load="loaded", invocation="1"):
    return Unit(name, load, active, enabled, invocation)


def spec(path, written=(1, 1)):
    return nvidia_ctk.Spec(Path(path), "yaml", ("index",), written)


LASTING, PASSING = spec("/etc/cdi/nvidia.yaml"), spec("/run/cdi/nvidia.yaml")


# --- Decisions -----------------------------------------------------------------------------------------------------


def test_no_service_is_restarted_without_device_lists():
    assert steps(Seen()) == ()


def test_without_the_toolkit_specifications_are_left_alone():
    assert steps(Seen(False, (LASTING,), (PASSING,), unit(REFRESH))) == ()


def test_specifications_come_before_services_that_may_be_containers():
    dcgm, exporter = unit("nvidia-dcgm.service"), unit("dcgm-exporter.service")
    assert steps(Seen(True, (LASTING,), (PASSING,), None, (dcgm, exporter))) == (
        Renew(LASTING),
        Renew(PASSING),
        Restart(dcgm, "try-restart", True),
        Restart(exporter, "try-restart", True),
    )


@pytest.mark.parametrize(
    ("refresh", "restarted"),
    [
        (unit(REFRESH), True),
        (unit(REFRESH, "inactive"), True),
        (unit(REFRESH, "inactive", "enabled-runtime"), True),
        (unit(REFRESH, "active", "disabled"), True),
        (unit(REFRESH, "failed", "disabled"), True),
        (unit(REFRESH, "inactive", "disabled"), False),
        (unit(REFRESH, "inactive", "masked", "masked"), False),
        (unit(REFRESH, "inactive", "", "not-found"), False),
    ],
)
def test_toolkits_enabled_unit_is_restarted(refresh, restarted):
    found = steps(Seen(True, (LASTING,), (PASSING,), refresh))
    assert found == ((Restart(refresh, "restart", True),) if restarted else ()) + (Renew(LASTING), Renew(PASSING))


@pytest.mark.parametrize("active", ["active", "activating", "reloading"])
def test_running_services_are_restarted(active):
    running = unit("a.service", active)
    assert steps(Seen(services=(running,))) == (Restart(running, "try-restart", True),)


@pytest.mark.parametrize("active", ["inactive", "failed", "deactivating"])
def test_stopped_services_are_not_restarted(active):
    assert steps(Seen(services=(unit("a.service", active),))) == ()


@pytest.mark.parametrize(("enabled", "restarted"), [("enabled", True), ("disabled", False)])
def test_list_of_devices_for_slurm_is_written_again(enabled, restarted):
    """Restart a unit that is inactive because its work is done."""
    service = unit(SLURM_DEVICES, "inactive", enabled)
    assert steps(Seen(services=(service,))) == ((Restart(service, "restart", True),) if restarted else ())
    assert steps(Seen(services=(service,), starting=True)) == (
        (Restart(service, "restart", False),) if restarted else ()
    )


def test_recovery_starts_failed_but_not_stopped_services():
    failed, stopped = unit("a.service", "failed"), unit("b.service", "inactive")
    assert steps(Seen(services=(failed, stopped)), again=True) == (Restart(failed, "restart", True),)


def test_boot_waits_for_nothing_and_leaves_refreshed_files():
    refresh, service = unit(REFRESH, "inactive"), unit("a.service")
    assert steps(Seen(True, (LASTING,), (PASSING,), refresh, (service,), starting=True)) == (
        Restart(refresh, "restart", False),
        Renew(LASTING),
        Restart(service, "try-restart", False),
    )
    assert Renew(PASSING) in steps(Seen(True, (), (PASSING,), None, starting=True))


# --- CDI specifications ---------------------------------------------------------------------------------------------


class Toolkit:
    """A host in a folder, with CDI directories and a replacement for nvidia-ctk."""

    def __init__(self, root: Path, monkeypatch) -> None:
        self.root, self.etc, self.run = root, root / "etc/cdi", root / "var/run/cdi"
        self.devices, self.setenv = root / "devices", monkeypatch.setenv
        for folder in (self.etc, self.run, root / "bin"):
            folder.mkdir(parents=True)
        (root / "bin/nvidia-ctk").symlink_to(STAND_IN)
        monkeypatch.setenv("PATH", "%s:%s" % (root / "bin", os.environ["PATH"]))
        monkeypatch.setenv("STAND_IN_DEVICES", str(self.devices))
        monkeypatch.delenv("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", raising=False)
        self.devices.write_text(WHOLE)

    def generate(self, path: Path, *options: str) -> Path:
        subprocess.run(
            ["nvidia-ctk", "cdi", "generate", "--output=%s" % path, *options], check=True, stderr=subprocess.DEVNULL
        )
        return path

    def follow(self, **options):
        return follow([], root=str(self.root), **options)


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    return Toolkit(tmp_path, monkeypatch)


def names(path: Path) -> list[str]:
    if path.suffix == ".json":
        return [device["name"] for device in json.loads(path.read_text())["devices"]]
    return [line.split("name: ")[1].strip('"') for line in path.read_text().splitlines() if " name: " in line]


@pytest.mark.parametrize("format", ["yaml", "json"])
@pytest.mark.parametrize(
    ("strategies", "before", "after"),
    [
        (["index"], ["0", "1", "all"], ["0", "1:0", "1:1", "all"]),
        (["type-index"], ["gpu0", "gpu1", "all"], ["gpu0", "mig1:0", "mig1:1", "all"]),
        (["uuid"], ["GPU-aa", "GPU-bb", "all"], ["GPU-aa", "MIG-cc", "MIG-dd", "all"]),
        (
            ["index", "uuid"],
            ["0", "1", "GPU-aa", "GPU-bb", "all"],
            ["0", "1:0", "1:1", "GPU-aa", "MIG-cc", "MIG-dd", "all"],
        ),
    ],
)
def test_specification_is_regenerated_with_the_same_kind_of_names(toolkit, format, strategies, before, after):
    options = ["--device-name-strategy=%s" % strategy for strategy in strategies]
    path = toolkit.generate(toolkit.etc / ("nvidia.%s" % format), "--format=%s" % format, *options)
    assert names(path) == before
    toolkit.devices.write_text(SPLIT)
    assert toolkit.follow() == ("CDI: %s written again" % path,)
    assert names(path) == after


def test_both_directories_are_updated_once(toolkit):
    one, other = toolkit.generate(toolkit.etc / "nvidia.yaml"), toolkit.generate(toolkit.run / "gpus.yaml")
    toolkit.devices.write_text(SPLIT)
    assert toolkit.follow() == tuple("CDI: %s written again" % path for path in (one, other))
    written = [(path.stat().st_ino, path.stat().st_mtime_ns) for path in (one, other)]
    assert toolkit.follow() == ()
    assert [(path.stat().st_ino, path.stat().st_mtime_ns) for path in (one, other)] == written


def test_the_file_is_replaced_at_once_and_keeps_its_mode(toolkit):
    path = toolkit.generate(toolkit.etc / "nvidia.yaml")
    path.chmod(0o640)
    toolkit.devices.write_text(SPLIT)
    with path.open() as reader:
        old = path.read_text()
        toolkit.follow()
        assert reader.read() == old
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(file.name for file in toolkit.etc.iterdir()) == ["nvidia.yaml"]


def test_links_stay_links(toolkit):
    path = toolkit.generate(toolkit.root / "elsewhere")
    link = toolkit.etc / "nvidia.yaml"
    link.symlink_to(path)
    toolkit.devices.write_text(SPLIT)
    assert toolkit.follow() == ("CDI: %s written again" % path,)
    assert link.is_symlink() and "1:0" in names(path)


OTHERS = {
    "kind.yaml": "cdiVersion: 0.5.0\nkind: k8s.device-plugin.nvidia.com/gpu\ndevices: []\n# nvidia-cdi-hook\n",
    "hand.yaml": "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: mine\n",
    "empty.yaml": "",
    "broken.json": '{"kind": "nvidia.com/gpu", "hooks": "nvidia-cdi-hook"',
    "list.json": '["nvidia.com/gpu", "nvidia-cdi-hook"]',
    "nvidia.yaml.new": "kind: nvidia.com/gpu\n# nvidia-cdi-hook\n",
}


def test_specifications_of_other_tools_are_not_changed(toolkit):
    for name, text in OTHERS.items():
        (toolkit.etc / name).write_text(text)
    (toolkit.etc / "dangling.yaml").symlink_to("nowhere")
    assert toolkit.follow() == ()
    assert {path.name: path.read_text() for path in toolkit.etc.iterdir() if path.exists()} == OTHERS


def test_missing_specification_is_not_created(toolkit):
    assert toolkit.follow() == ()
    assert list(toolkit.etc.iterdir()) == list(toolkit.run.iterdir()) == []


def test_output_path_in_the_environment_is_ignored(toolkit):
    path, other = toolkit.generate(toolkit.etc / "nvidia.yaml"), toolkit.root / "other.yaml"
    toolkit.setenv("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", str(other))
    toolkit.devices.write_text(SPLIT)
    assert toolkit.follow() == ("CDI: %s written again" % path,)
    assert not other.exists()


def test_failed_file_is_kept_and_named_and_others_are_written(toolkit):
    one, other = toolkit.generate(toolkit.etc / "a.yaml"), toolkit.generate(toolkit.etc / "b.json", "--format=json")
    toolkit.devices.write_text(SPLIT)

    def run(command, **options):
        if "--format=yaml" in command:
            options["env"] = {"STAND_IN_FAILS": "1"}
        return run_tool(command, **options)

    old = one.read_text()
    with pytest.raises(FollowError) as error:
        toolkit.follow(run=run)
    assert error.value.outcome == "new"
    assert error.value.where == str(one)
    assert "failed to generate CDI spec" in str(error.value) and "nvidia-ctk cdi generate --output=%s" % one in str(
        error.value
    )
    assert error.value.steps_done == ("CDI: %s written again" % other,)
    assert one.read_text() == old and "1:0" in names(other)


def test_invalid_specification_is_not_written(toolkit):
    path = toolkit.generate(toolkit.etc / "nvidia.yaml")
    old = path.read_text()
    with pytest.raises(FollowError, match="printed no specification"):
        toolkit.follow(run=lambda command, **_options: subprocess.CompletedProcess(command, 0, "Usage: ...", ""))
    assert path.read_text() == old


# --- systemd ----------------------------------------------------------------------------------------------------------


class Systemd:
    """Replace systemctl for a number of units.

    Restarts of the units in `breaks` fail. If a unit in `together` is restarted, the other units in `together` are
    restarted with it. The units in `limited` were started so often that systemd refuses a start until their start
    counter is reset.
    """

    def __init__(self, *units: Unit, state="running", breaks=(), together=(), limited=()) -> None:
        self.units = {u.name: u for u in units}
        self.state, self.breaks, self.together, self.limited = state, breaks, together, set(limited)
        self.called: list[str] = []

    def __call__(self, command, **_options):
        if command[0] != "systemctl":
            raise FileNotFoundError(2, "No such file or directory", command[0])
        if command[1] == "reset-failed":
            self.limited -= set(command[3:])
            return subprocess.CompletedProcess(command, 0, "", "")
        if command[1] != "show":
            self.called.append(" ".join(command[1:]))
            return self.restart(command, command[-1])
        if "--" not in command:
            return subprocess.CompletedProcess(command, 0, "SystemState=%s\n" % self.state, "")
        blocks = [self.block(name) for name in command[command.index("--") + 1 :]]
        return subprocess.CompletedProcess(command, 0, "\n".join(blocks), "")

    def block(self, name):
        u = self.units.get(name) or unit(name, "inactive", "", "not-found", "")
        values = {"Id": u.name, "LoadState": u.load, "ActiveState": u.active, "UnitFileState": u.enabled}
        return "".join("%s=%s\n" % item for item in dict(values, InvocationID=u.invocation).items())

    def restart(self, command, name):
        if name in self.breaks or name in self.limited:
            return subprocess.CompletedProcess(command, 1, "", "Job for %s failed.\n" % name)
        for other in {name, *(self.together if name in self.together else ())}:
            self.units[other] = unit(other, invocation="2")
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    return str(tmp_path)


@pytest.mark.parametrize("state", ["running", "starting"])
def test_start_limit_does_not_block_a_restart(root, state):
    systemd = Systemd(unit("a.service"), unit("b.service", "inactive"), state=state, limited=["a.service", "b.service"])
    assert len(follow(["a.service", "b.service"], systemd, root)) == 1
    assert systemd.called[-1].endswith("try-restart -- a.service")
    assert systemd.limited == {"b.service"}, "what is not started keeps what systemd knows of it"


def test_services_are_restarted_once_in_the_given_order(root):
    systemd = Systemd(unit("a.service"), unit("b.service"), unit("c.service", "inactive"))
    systemd.units["alias.service"] = systemd.units["a.service"]
    done = follow(["b.service", "a.service", "alias.service", "c.service", "absent.service"], systemd, root)
    assert done == ("b.service restarted", "a.service restarted")
    assert systemd.called == ["try-restart -- b.service", "try-restart -- a.service"]


def test_dry_run_reports_the_same_and_does_nothing(root):
    systemd = Systemd(unit("a.service"), unit("b.service", "failed"))
    assert predict(["a.service", "b.service"], systemd, root) == ("restart a.service",)
    assert predict(["a.service", "b.service"], systemd, root, again=True) == ("restart a.service", "restart b.service")
    assert systemd.called == []


def test_jointly_restarted_service_is_not_restarted_again(root):
    systemd = Systemd(unit("a.service"), unit("b.service"), together=("a.service", "b.service"))
    assert follow(["a.service", "b.service"], systemd, root) == ("a.service restarted", "b.service restarted")
    assert systemd.called == ["try-restart -- a.service"]


def test_failed_restart_is_named_and_others_are_restarted(root):
    systemd = Systemd(unit("a.service"), unit("b.service"), breaks=("a.service",))
    with pytest.raises(FollowError) as error:
        follow(["a.service", "b.service"], systemd, root)
    assert error.value.where == "a.service" and "journalctl --unit a.service" in error.value.cure
    assert error.value.steps_done == ("b.service restarted",)


@pytest.mark.parametrize("state", ["initializing", "starting"])
def test_nothing_is_awaited_while_the_host_boots(root, state):
    systemd = Systemd(unit("a.service"), state=state)
    assert follow(["a.service"], systemd, root) == ("restart of a.service queued in systemd",)
    assert systemd.called == ["--no-block try-restart -- a.service"]


def test_nothing_is_awaited_while_the_boot_unit_runs(root):
    systemd = Systemd(unit("a.service"), unit(BOOT, "activating"))
    follow(["a.service"], systemd, root)
    assert systemd.called == ["--no-block try-restart -- a.service"]


def test_units_of_the_collection_and_the_toolkit_are_not_followed(root):
    systemd = Systemd(unit(BOOT), unit(REFRESH))
    assert follow([BOOT, REFRESH], systemd, root) == ()


def test_without_systemd_nothing_is_restarted(tmp_path):
    systemd = Systemd(unit("a.service"))
    assert follow(["a.service"], systemd, str(tmp_path)) == ()
    assert systemd.called == []


def test_unresponsive_systemd_is_an_error_with_a_fix(root):
    def run(command, **_options):
        if command[0] != "systemctl":
            raise FileNotFoundError(2, "No such file or directory", command[0])
        return subprocess.CompletedProcess(command, 1, "", "Failed to connect to bus\n")

    with pytest.raises(FollowError, match=r"Failed to connect to bus.*by hand"):
        follow(["a.service"], run, root)


# --- The mark ---------------------------------------------------------------------------------------------------------


def test_mark_stays_until_removed(tmp_path):
    owing = PendingFollowUp(str(tmp_path / "state"))
    assert not owing.due()
    owing.begin()
    owing.begin()
    assert PendingFollowUp(str(tmp_path / "state")).due()
    owing.end()
    owing.end()
    assert not owing.due()


def test_damaged_mark_counts(tmp_path):
    (tmp_path / "follow.json").write_text("{")
    assert PendingFollowUp(str(tmp_path)).due()
