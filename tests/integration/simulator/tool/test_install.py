# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module gpu_simulator in a directory that represents a host."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess

import pytest

from tests.integration.install_module import result

T4 = {"model": "T4-16GB"}
PLACES = ("usr/local/lib/gpusim", "usr/local/share/gpusim", "etc/gpusim", "var/lib/gpusim")


def files_of(host):
    return {str(p.relative_to(host.root)) for p in host.root.rglob("*") if not p.is_dir()}


@pytest.mark.host_python
def test_bare_host_gets_everything_and_a_second_run_changes_nothing(empty_host, bundle):
    first = empty_host.installed(bundle(T4))
    assert first["changed"] is True
    assert "laid out 1 simulated GPUs of h1" in first["done"]
    assert {
        "usr/local/lib/gpusim/libnvidia-ml.so.1",
        "usr/local/lib/gpusim/libnvidia-ml.so",
        "usr/local/bin/gpusim",
        "usr/local/share/gpusim/models/t4-16gb.json",
        "etc/ld.so.conf.d/000-gpusim.conf",
        "etc/gpusim/gpus.json",
        "var/lib/gpusim/state",
    } <= files_of(empty_host)
    assert empty_host.nvml("result = N.nvmlDeviceGetName(gpu)") == "Tesla T4"
    before = {path: (empty_host.root / path).stat().st_mtime_ns for path in files_of(empty_host)}
    assert empty_host.installed(bundle(T4)) == {"changed": False, "done": [], "missing": []}
    assert {path: (empty_host.root / path).stat().st_mtime_ns for path in files_of(empty_host)} == before


def test_check_mode_on_a_bare_host_predicts_and_touches_nothing(empty_host, bundle):
    said = empty_host.installed(bundle(T4), "--check")
    assert said["changed"] is True
    assert any(step.startswith("install ") for step in said["done"])
    assert not empty_host.root.exists()


def test_check_mode_on_an_installed_host_lists_changes(installed_host, bundle):
    host = installed_host
    assert host.installed(bundle(T4), "--check")["changed"] is False
    said = host.installed(bundle({"model": "T4-16GB", "count": 2}), "--check")
    assert said["changed"] is True and "would lay out 2 simulated GPUs of h1" in said["done"]
    assert host.nvml("result = N.nvmlDeviceGetCount()") == 1


def test_changed_gpus_are_reinitialized(installed_host, bundle):
    host = installed_host
    uuid = host.nvml("result = N.nvmlDeviceGetUUID(gpu)")
    done = host.installed(bundle(T4, {"model": "L40S-48GB"}))["done"]
    assert not any(step.startswith("install") for step in done)
    assert host.nvml("result = N.nvmlDeviceGetCount()") == 2
    assert host.nvml("result = N.nvmlDeviceGetUUID(gpu)") == uuid


def test_busy_gpus_are_not_reinitialized(installed_host, bundle):
    host = installed_host
    child = host.start("--gpu", "0", "--", "cat")
    child.stdin.write(b"x\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"x\n"
    refused = host.install(bundle({"model": "T4-16GB", "count": 2}))
    assert refused.returncode == 1
    assert "in use" in refused.stdout and "Stop the processes" in refused.stdout
    assert host.nvml("result = N.nvmlDeviceGetCount()") == 1
    assert json.loads((host.root / "etc/gpusim/gpus.json").read_text())["gpus"] == [T4]


def test_library_is_built_only_from_changed_source_and_replaced_atomically(installed_host, bundle):
    host = installed_host
    library = host.library
    before = library.stat().st_ino
    wanted = bundle(T4)
    wanted["sources"]["src/another_release.c"] = 'const char another_release[] = "2";\n'
    with library.open("rb") as client:
        assert host.installed(wanted)["changed"] is True
        assert library.stat().st_ino != before
        # If a client has the old library open, the client can still read all of it.
        assert client.read(4) == b"\x7fELF"
    assert host.installed(wanted)["changed"] is False


def test_interrupted_build_is_repeated(installed_host, bundle):
    host = installed_host
    (host.library.parent / "source.sha256").unlink()
    assert host.installed(bundle(T4))["changed"] is True


LDCONFIG = shutil.which("ldconfig") or "/sbin/ldconfig"


def loader_cache(host):
    said = subprocess.run([LDCONFIG, "-r", host.root, "-p"], capture_output=True, text=True, check=True)
    return [line.strip().split(" ")[0] for line in said.stdout.splitlines() if "=> /usr/local/lib/gpusim/" in line]


def kill_in_place_of_ldconfig(host, directory):
    """Return the environment for an installation that dies at ldconfig.

    The environment kills the process when it starts ldconfig to update the loader's cache.
    """
    directory.mkdir()
    (directory / "ldconfig").write_text("#!/bin/sh\nkill -KILL $PPID\n")
    (directory / "ldconfig").chmod(0o755)
    return {**host.environment, "PATH": f"{directory}:{os.environ['PATH']}"}


@pytest.mark.parametrize("gone", ["the library", "the loader's configuration"])
def test_the_loader_finds_the_library_after_an_installation_that_was_killed(installed_host, bundle, tmp_path, gone):
    host = installed_host
    (host.root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    configuration = host.root / "etc/ld.so.conf.d/000-gpusim.conf"
    configuration.unlink()
    if gone == "the library":
        host.library.unlink()
    killed = host.install(bundle(T4), env=kill_in_place_of_ldconfig(host, tmp_path / "bin"))
    assert killed.returncode == -signal.SIGKILL and configuration.exists() and host.library.exists()
    assert host.installed(bundle(T4))["changed"] is True
    assert loader_cache(host) == ["libnvidia-ml.so.1", "libnvidia-ml.so"]
    assert host.installed(bundle(T4))["changed"] is False


def test_the_loader_forgets_the_library_after_a_removal_that_was_killed(installed_host, bundle, tmp_path):
    host = installed_host
    (host.root / "etc/ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n")
    subprocess.run([LDCONFIG, "-r", host.root], check=True)
    assert loader_cache(host)
    killed = host.install(bundle(state="absent"), env=kill_in_place_of_ldconfig(host, tmp_path / "bin"))
    assert killed.returncode == -signal.SIGKILL
    assert host.installed(bundle(state="absent"))["changed"] is True
    assert loader_cache(host) == [] and not any((host.root / place).exists() for place in PLACES)


def test_failed_build_changes_nothing(installed_host, bundle):
    host = installed_host
    before = host.library.read_bytes()
    wanted = bundle(T4)
    wanted["sources"]["src/broken.c"] = "int main(void) { return }\n"
    failed = host.install(wanted)
    assert failed.returncode == 1 and "broken.c" in failed.stdout
    assert host.library.read_bytes() == before
    assert host.installed(bundle(T4))["changed"] is False


@pytest.mark.host_python
def test_manually_changed_file_is_restored(installed_host, bundle):
    host = installed_host
    model = host.root / "usr/local/share/gpusim/models/t4-16gb.json"
    model.write_text("{}")
    stray = model.with_name("stray.json")
    stray.write_text("{}")
    done = host.installed(bundle(T4))["done"]
    assert len(done) == 2 and not stray.exists() and json.loads(model.read_text())["key"] == "T4-16GB"


@pytest.mark.host_python
def test_missing_compiler_is_named(empty_host, bundle, tmp_path):
    (tmp_path / "bin").mkdir()
    poor = {**empty_host.environment, "PATH": str(tmp_path / "bin")}
    done = empty_host.install(bundle(T4), env=poor)
    assert result(done) == {"changed": False, "done": [], "missing": ["cc", "make"]}
    predicted = result(empty_host.install(bundle(T4), "--check", env=poor))
    assert predicted["changed"] is True and predicted["done"][0] == "install packages for cc, make"
    assert not empty_host.root.exists()


def test_absent_removes_every_trace(installed_host, bundle):
    host = installed_host
    would = host.installed(bundle(state="absent"), "--check")
    assert would["changed"] is True and host.library.exists()
    assert host.installed(bundle(state="absent")) == would
    assert files_of(host) == set()
    assert host.installed(bundle(state="absent"))["changed"] is False
    assert not any((host.root / place).exists() for place in PLACES)


def test_unknown_model_is_refused_with_the_known_ones(installed_host, bundle):
    host = installed_host
    refused = host.install(bundle({"model": "H9000"}))
    assert refused.returncode == 1
    assert "gpus[0].model: H9000 is not in the catalogue" in refused.stdout and "H100-80GB" in refused.stdout


def test_host_with_real_gpus_is_refused_unless_they_are_hidden(installed_host, bundle):
    signs = ("proc/driver/nvidia/version", "dev/nvidiactl")
    for sign in signs:
        assert installed_host.installed(bundle(T4))["changed"] is False
        (installed_host.root / sign).parent.mkdir(parents=True)
        (installed_host.root / sign).touch()
    for options in ([], ["--check"]):
        refused = installed_host.install(bundle(T4), *options)
        assert refused.returncode == 1 and "real NVIDIA GPUs" in refused.stdout
    assert installed_host.installed(bundle(T4, hide_real_gpus=True))["changed"] is False
    assert installed_host.installed(bundle(state="absent"))["changed"] is True


# --- the driver's files


def test_driver_files_are_written_at_each_boot_on_request(installed_host, bundle):
    host, unit = installed_host, "etc/systemd/system/gpusim-kernel-files.service"
    at_boot = "etc/systemd/system/multi-user.target.wants/gpusim-kernel-files.service"
    assert host.installed(bundle(T4, kernel_files=True), "--check")["changed"] is True
    assert not (host.root / unit).exists()
    assert host.installed(bundle(T4, kernel_files=True))["changed"] is True
    assert "ExecStart=/usr/local/bin/gpusim kernel-files --follow\n" in (host.root / unit).read_text()
    assert os.readlink(host.root / at_boot) == f"/{unit}"
    assert host.installed(bundle(T4, kernel_files=True))["changed"] is False
    assert host.installed(bundle(T4))["changed"] is True
    assert not (host.root / unit).exists() and not (host.root / at_boot).is_symlink()


def test_removed_simulator_writes_no_driver_files(installed_host, bundle):
    host = installed_host
    host.installed(bundle(T4, kernel_files=True))
    host.installed(bundle(T4, state="absent"))
    assert not [path for path in files_of(host) if "kernel-files" in path]
