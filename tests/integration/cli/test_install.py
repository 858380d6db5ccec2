# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install, repeat and remove gpu-layout, and check the content of its archive."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import subprocess
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Callable

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.install import layout_boot
from ansible_collections.openfleet.gpu.plugins.module_utils.install.build_command import read_sources, sources_digest
from ansible_collections.openfleet.gpu.plugins.module_utils.install.files import Installation, InstallError
from ansible_collections.openfleet.gpu.plugins.module_utils.install.sources import Sources, pack
from tests.integration.command_host import INSTALLER, PYTHON, installer_environment, installer_input, run_installer
from tests.integration.simulated_host import ROOT
from tests.integration.warm_ansible import interpreter
from tests.lab import warm_playbook

LAYOUT = [{"gpus": "all", "sharing": "shared"}]
OFF = {"directory": "", "service": "[Service]\n", "timer": "[Timer]\n"}
NOBODY = {"accounts": [], "state_directory": "/var/lib/openfleet-gpu"}
UNKEPT = {
    "wanted": False, "socket": "[Socket]\n", "service": "[Service]\n",
    "settings": {"max": "7d", "groups": [], "state_directory": "/var/lib/openfleet-gpu"},
}  # fmt: skip


UNLEASED = {
    "wanted": False, "socket": "[Socket]\n", "service": "[Service]\n", "slice": "[Slice]\n",
    "state_directory": "/var/lib/openfleet-gpu",
}  # fmt: skip


def asked(**changes) -> dict:
    """Return the module's parameters without the command's source files."""
    known = {"layout": LAYOUT, "unit": "[Unit]\n", "metrics": OFF, "readers": NOBODY, "keep": UNKEPT, "lease": UNLEASED}
    return {**known, **changes}


@pytest.fixture
def install(tmp_path):
    def run(**changes) -> dict:
        result = run_installer(tmp_path, **asked(**changes))
        assert not result.get("failed"), result["msg"]
        return {key: result[key] for key in ("changed", "done")}

    return run


LOCK = "run/openfleet-gpu-install.lock"


def installed(root) -> dict:
    return {str(f.relative_to(root)): f.read_bytes() for f in root.rglob("*") if f.is_file()}


@pytest.mark.host_python
def test_installation_waits_for_another_one(install, tmp_path):
    (tmp_path / "run").mkdir()
    with (tmp_path / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [PYTHON, "-m", INSTALLER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=installer_environment(), **pipes) as second:
            second.stdin.write(installer_input(tmp_path, **asked()))
            second.stdin.close()
            wait_until(lambda: has_open(second.pid, tmp_path / LOCK), "the installer looks at the lock")
            assert second.poll() is None and list(installed(tmp_path)) == [LOCK]
            assert install(check=True)["changed"], "a dry run changes nothing, so it need not wait"
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert len(json.load(second.stdout)["done"]) == 3
    assert LOCK not in installed(tmp_path) and not install()["changed"]


def test_next_run_starts_units_that_failed(tmp_path, monkeypatch):
    """Restart units that failed in an earlier run.

    All files already have the desired content, so only the installation's record shows that a restart is needed.
    """
    monkeypatch.setattr(Installation, "is_host", True)
    sources = read_sources()
    given = Sources(sources_digest(sources), pack(sources))
    wanted = {**asked(), "agent": "", "on_trial": False}
    failing, called = {"restart"}, []

    def call(command):
        called.append(command[1])
        assert command[1] not in ("enable", "disable") or "--no-reload" in command
        return subprocess.CompletedProcess(command, int(command[1] in failing), "", "it does not answer")

    def run(check=False):
        called.clear()
        target = Installation(tmp_path, check, call)
        layout_boot.install(target, wanted, given)
        return target.done

    for _ in range(2):
        with pytest.raises(InstallError, match=r"systemctl restart gpu-layout\.service: it failed with status 1"):
            run()
    assert run(check=True) == ["start the units (an earlier run did not start them)"] and called == []
    failing.clear()
    assert run() == ["start the units (an earlier run did not start them)"]
    assert called == ["daemon-reload", "enable", "restart"]
    assert run() == [] and called == []
    # Only the layout file changes. The module does not reload systemd, because a reload could detach GPUs from running
    # containers.
    wanted["layout"] = [{"gpus": [0], "sharing": "exclusive"}]
    run()
    assert called == ["enable", "restart"]
    assert layout_boot.UNFINISHED not in installed(tmp_path)


@pytest.mark.parametrize("waits", [True, False])
def test_unit_blocked_by_another_run_names_that_run(tmp_path, monkeypatch, waits):
    monkeypatch.setattr(Installation, "is_host", True)
    line = "gpu-layout: this host: another run is changing the layout: pid 7 (a run of Ansible). Wait for it and run again."

    def call(command):
        journal = line + "\ngpu-layout.service: Failed with result 'exit-code'.\n" if waits else "no GPU\n"
        return subprocess.CompletedProcess(command, int(command[0] == "systemctl"), journal, "Job failed")

    with pytest.raises(InstallError) as caught:
        Installation(tmp_path, False, call).systemctl("restart", "gpu-layout.service", log_of="gpu-layout.service")
    said = str(caught.value)
    assert ("this host: another run is changing the layout: pid 7" in said) == waits
    assert ("it failed with status" in said) == (not waits)


def has_open(pid: int, file: Path) -> bool:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # A process can close a file while the test reads its list of open files.
        with suppress(FileNotFoundError):
            if os.readlink(link) == str(file):
                return True
    return False


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.host_python
def test_install_is_idempotent_and_removal_complete(install, tmp_path):
    assert len(install()["done"]) == 3
    there = installed(tmp_path)
    assert sorted(there) == [
        "etc/openfleet-gpu/layout.json",
        "etc/systemd/system/gpu-layout.service",
        "usr/local/bin/gpu-layout",
    ]
    assert json.loads(there["etc/openfleet-gpu/layout.json"]) == LAYOUT
    assert (tmp_path / "etc/openfleet-gpu/layout.json").stat().st_mode & 0o777 == 0o644
    assert install() == {"changed": False, "done": []}
    assert installed(tmp_path) == there
    assert install(state="absent")["changed"] and installed(tmp_path) == {}
    assert not install(state="absent")["changed"]


def test_removal_includes_records_and_a_lock_is_no_record(install, tmp_path):
    records = tmp_path / "records"
    for name in ("lock", "owned.json"):
        records.mkdir(exist_ok=True)
        (records / name).touch()
        foretold = install(check=True, state="absent", records=str(records))
        assert (records / name).exists()
        told = install(state="absent", records=str(records))
        assert told == foretold and not records.exists()
        assert told["done"] == ([] if name == "lock" else [f"remove {records}"])
    assert install(state="absent", records=str(records)) == {"changed": False, "done": []}


def test_check_mode_predicts_and_changes_nothing(install, tmp_path):
    foretold = install(check=True)
    assert installed(tmp_path) == {}
    assert install() == foretold
    there = installed(tmp_path)
    assert install(check=True, state="absent")["changed"]
    assert installed(tmp_path) == there


def test_layout_on_trial_can_be_rolled_back(install, tmp_path):
    path = tmp_path / "etc/openfleet-gpu/layout.json"
    install(state="former")
    assert installed(tmp_path) == {}, "nothing was on trial"
    install(on_trial=True)
    install(state="former")
    assert set(installed(tmp_path)) == {"usr/local/bin/gpu-layout"}, "there was no layout before"
    install()
    there = installed(tmp_path)
    for layout in ([{"gpus": [0], "sharing": "exclusive"}], [{"gpus": [1], "sharing": "exclusive"}]):
        install(layout=layout, unit="[Unit]\nDescription=of this layout\n", on_trial=True)
        assert json.loads(path.read_text()) == layout
    assert install(state="former")["changed"]
    assert installed(tmp_path) == there
    install(layout=[], on_trial=True)
    install(layout=[])
    assert json.loads(path.read_text()) == [], "it is confirmed: nothing is kept"
    assert set(installed(tmp_path)) == set(there)


ON = dict(OFF, directory="/var/lib/some-exporter/textfile")
METRICS = {
    "etc/openfleet-gpu/metrics.json",
    "etc/systemd/system/gpu-layout-metrics.service",
    "etc/systemd/system/gpu-layout-metrics.timer",
}


def test_metrics_are_installed_and_removed_with_their_directory(install, tmp_path):
    install()
    without = installed(tmp_path)
    foretold = install(check=True, metrics=ON)
    assert installed(tmp_path) == without
    assert install(metrics=ON) == foretold
    assert set(installed(tmp_path)) - set(without) == METRICS
    assert install(metrics=ON) == {"changed": False, "done": []}
    folder = tmp_path / "var/lib/some-exporter/textfile"
    assert folder.stat().st_mode & 0o777 == 0o755
    (folder / "openfleet_gpu_layout.prom").write_text("openfleet_layout_drift 0\n")
    runtime = tmp_path / "run/openfleet-gpu-metrics"
    runtime.mkdir(parents=True)
    for name in ("lock", "mps-servers.json"):
        (runtime / name).touch()
    assert install(metrics=OFF)["changed"]
    assert not runtime.exists()
    assert installed(tmp_path) == without and not (tmp_path / "var").exists()
    install(metrics=ON)
    (folder / "openfleet_gpu_layout.prom").write_text("openfleet_layout_drift 0\n")
    assert install(state="absent")["changed"]
    assert installed(tmp_path) == {} and not (tmp_path / "var").exists()


def test_keep_socket_is_installed_and_removed(install, tmp_path):
    install()
    without = installed(tmp_path)
    kept = dict(UNKEPT, wanted=True)
    assert install(keep=kept)["changed"] and install(keep=kept) == {"changed": False, "done": []}
    assert set(installed(tmp_path)) - set(without) == {
        "etc/openfleet-gpu/keep.json",
        "etc/systemd/system/gpu-layout-keep.service",
        "etc/systemd/system/gpu-layout-keep.socket",
    }
    assert json.loads((tmp_path / "etc/openfleet-gpu/keep.json").read_text()) == kept["settings"]
    install()
    assert installed(tmp_path) == without
    install(keep=kept)
    install(state="absent")
    assert installed(tmp_path) == {}


def test_lease_units_are_installed_and_stay_until_the_last_lease_has_ended(install, tmp_path):
    install()
    without = installed(tmp_path)
    wanted = dict(UNLEASED, wanted=True)
    assert install(lease=wanted)["changed"] and install(lease=wanted) == {"changed": False, "done": []}
    units = {
        "etc/systemd/system/gpu-layout-lease.service",
        "etc/systemd/system/gpu-layout-lease.socket",
        "etc/systemd/system/openfleet-gpu-leases.slice",
    }
    assert set(installed(tmp_path)) - set(without) == units
    record = tmp_path / "var/lib/openfleet-gpu/leases.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"schema": 1, "next_number": 2, "bookings": [{}]}))
    assert install() == {"changed": False, "done": []}
    record.write_text(json.dumps({"schema": 1, "next_number": 2, "bookings": []}))
    assert install()["changed"] and install() == {"changed": False, "done": []}
    assert not units & set(installed(tmp_path))
    record.unlink()
    install(lease=wanted)
    install(state="absent")
    assert not units & set(installed(tmp_path))


def test_leases_without_the_command_are_refused(tmp_path):
    wanted = dict(UNLEASED, wanted=True)
    refused(tmp_path, "gpu_layout: it needs the command", state="absent", lease=wanted)


def test_tenant_agent_is_installed_and_removed(install, tmp_path):
    install()
    without = installed(tmp_path)
    assert install(agent="[Service]\n")["changed"]
    assert install(agent="[Service]\n") == {"changed": False, "done": []}
    unit = "etc/systemd/system/openfleet-vgpu-agent.service"
    assert set(installed(tmp_path)) - set(without) == {unit} and (tmp_path / unit).read_text() == "[Service]\n"
    install()
    assert installed(tmp_path) == without
    install(agent="[Service]\n")
    install(state="absent")
    assert installed(tmp_path) == {}


def test_impossible_keep_is_refused_before_any_change(tmp_path):
    endless = dict(UNKEPT, wanted=True, settings=dict(UNKEPT["settings"], max="for ever"))
    refused(tmp_path, "gpu_layout_keep_max: 'for ever' is not a length of time", keep=endless)
    refused(tmp_path, "gpu_layout_keep: it needs the command", state="absent", keep=dict(UNKEPT, wanted=True))


def test_directory_with_other_files_stays(install, tmp_path):
    folder = tmp_path / "var/lib/some-exporter/textfile"
    folder.mkdir(parents=True)
    (folder / "theirs.prom").write_text("theirs 1\n")
    install(metrics=ON)
    (folder / "openfleet_gpu_layout.prom").write_text("openfleet_layout_drift 0\n")
    # Move the metrics to a new directory, and then remove the new directory.
    install(metrics=dict(ON, directory="/srv/metrics"))
    assert [path.name for path in folder.iterdir()] == ["theirs.prom"]
    assert (tmp_path / "srv/metrics").is_dir()
    install(state="absent")
    assert [path.name for path in folder.iterdir()] == ["theirs.prom"] and not (tmp_path / "srv").exists()
    # The role did not create this directory, so the directory stays even if it is empty.
    (folder / "theirs.prom").unlink()
    install(metrics=ON)
    install(metrics=OFF)
    assert folder.is_dir()


@pytest.mark.parametrize("directory", ["var/lib", "/var/with space", '/a"b', "/100%"])
def test_directory_that_a_unit_cannot_name_is_refused(tmp_path, directory):
    refused(tmp_path, "gpu_layout_metrics_dir: ", metrics=dict(ON, directory=directory))


def test_metrics_without_the_command_are_refused(tmp_path):
    refused(tmp_path, "Set gpu_layout_restore_at_boot: true", state="absent", metrics=ON)


def refused(root, said, **changes):
    result = run_installer(root, **asked(**changes))
    assert result["failed"] and said in result["msg"], result
    assert installed(root) == {}


READERS = dict(NOBODY, accounts=["gpu-audit", "ops.audit"])
RULE, RECORD = "etc/sudoers.d/openfleet-gpu-holders", "etc/openfleet-gpu/readers.json"
needs_sudo = pytest.mark.skipif(shutil.which("visudo", path="/usr/sbin:/sbin") is None, reason="sudo is not installed")


@needs_sudo
def test_sudo_rule_is_installed_and_removed_with_its_readers(install, tmp_path):
    install()
    without = installed(tmp_path)
    foretold = install(check=True, readers=READERS)
    assert installed(tmp_path) == without
    assert install(readers=READERS) == foretold and foretold["done"]
    assert set(installed(tmp_path)) - set(without) == {RULE, RECORD}
    assert ((tmp_path / RULE).stat().st_mode & 0o777, (tmp_path / RECORD).stat().st_mode & 0o777) == (0o440, 0o600)
    rule = (tmp_path / RULE).read_text()
    assert "\ngpu-audit, ops.audit ALL = (root) NOPASSWD: NOSETENV: OPENFLEET_GPU_HOLDERS\n" in rule
    assert install(readers=READERS) == {"changed": False, "done": []}
    assert install(readers=dict(READERS, accounts=["gpu-audit"]))["done"] == [
        f"write {tmp_path}/{name}" for name in (RECORD, RULE)
    ]
    assert install(readers=NOBODY)["changed"] and installed(tmp_path) == without
    install(readers=READERS)
    assert install(state="absent")["changed"] and installed(tmp_path) == {}


@needs_sudo
@pytest.mark.parametrize("name", ["ALL", "%sudo", "a b", "audit,root", "audit=ALL", "#0", "", "-x", "audit\n"])
def test_invalid_account_gets_no_rule(tmp_path, name):
    refused(tmp_path, "gpu_layout_readers: ", readers=dict(READERS, accounts=["gpu-audit", name]))


@needs_sudo
def test_rule_refused_by_visudo_is_not_installed(install, tmp_path):
    """Refuse a sudoers rule that visudo refuses.

    visudo's directory is not in PATH, so the module must also search the directories of root's programs.
    """
    install(readers=READERS)
    before = (tmp_path / RULE).read_bytes()
    script = (
        "from ansible_collections.openfleet.gpu.plugins.module_utils.install import layout_boot as i\n"
        "i.RULE = i.RULE.replace('NOPASSWD:', 'NOPASSWORD:')\n"
        "from ansible_collections.openfleet.gpu.plugins.modules import layout_boot; layout_boot.main()\n"
    )
    given = installer_input(tmp_path, **asked(readers=dict(READERS, accounts=["other"])))
    done = subprocess.run(
        [PYTHON, "-c", script], input=given, env=installer_environment(), capture_output=True, text=True, check=False
    )
    assert "visudo refuses the rule" in json.loads(done.stdout)["msg"], done.stderr
    assert (tmp_path / RULE).read_bytes() == before
    assert [path.name for path in (tmp_path / RULE).parent.iterdir()] == [RULE.rpartition("/")[2]]


@needs_sudo
def test_readers_without_the_command_are_refused(tmp_path):
    refused(tmp_path, "Set gpu_layout_restore_at_boot: true", state="absent", readers=READERS)


@pytest.mark.host_python
def test_command_ignores_modules_in_the_callers_environment(install, tmp_path):
    """Check that root's command does not import from PYTHONPATH.

    Python searches PYTHONPATH before the standard library.
    """
    install()
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name in ("sitecustomize", "usercustomize", "argparse"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'a').write({name!r})\n")
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSTARTUP": str(folder / "argparse.py")}
    done = subprocess.run(
        [str(tmp_path / "usr/local/bin/gpu-layout"), "fits", "A30-24GB", "1g.6gb"],
        env=environment, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert not (folder / "ran").exists()


def test_only_changed_parts_are_written(install, tmp_path):
    install()
    assert install(layout=[])["done"] == [f"write {tmp_path}/etc/openfleet-gpu/layout.json"]
    changed = dict(read_sources(), **{"sizes.py": read_sources()["sizes.py"] + "# later\n"})
    written = f"write {tmp_path}/usr/local/bin/gpu-layout: it is of another release, or of another Python"
    assert install(sources=changed, layout=[])["done"] == [written]


def truncated(command):
    command.write_bytes(command.read_bytes()[:-100])


def empty(command):
    command.write_bytes(b"")


def longer(command):
    with command.open("ab") as file:
        file.write(b"\n")


def another_program(command):
    command.write_text("#!/bin/sh\n")


def another_interpreter(command):
    line, rest = command.read_bytes().split(b"\n", 1)
    command.write_bytes(line[:-1] + b"x\n" + rest)


def another_bytecode(command):
    """Change one byte of compiled code.

    The archive's structure and comment stay intact.
    """
    with zipfile.ZipFile(command) as archive:
        code = archive.read("openfleet_gpu/cli/main.pyc")
    content = command.read_bytes()
    assert content.count(code) == 1
    command.write_bytes(content.replace(code, code[:-1] + bytes([code[-1] ^ 1])))


def another_member(command):
    """Add a file to the archive.

    The module zipfile keeps the archive's comment.
    """
    with zipfile.ZipFile(command, "a") as archive:
        archive.writestr("sitecustomize.py", "print('not ours')\n")


def another_mode(command):
    command.chmod(0o777)


def a_link(command):
    kept = command.with_name("kept")
    command.rename(kept)
    command.symlink_to(kept)


def another_owner(command):
    if os.geteuid() != 0:
        pytest.skip("giving a file away needs root")
    os.chown(command, 65534, -1)


def seen(command):
    status = command.lstat()
    return status.st_ino, status.st_mode, status.st_uid, status.st_mtime_ns, command.read_bytes()


CONTENT = "its content is not what was installed"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (another_program, CONTENT),
        *[
            pytest.param(damage, CONTENT, marks=pytest.mark.thorough)
            for damage in (truncated, empty, longer, another_interpreter, another_bytecode, another_member)
        ],
        (another_mode, "its mode is 0777"),
        pytest.param(a_link, "it is not a regular file", marks=pytest.mark.thorough),
        (another_owner, "it belongs to user id 65534"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_altered_command_is_replaced_with_a_reason(install, tmp_path, damage, reason):
    install()
    command = tmp_path / "usr/local/bin/gpu-layout"
    with zipfile.ZipFile(command) as archive:
        before = {member.filename: member.CRC for member in archive.infolist() if member.filename.endswith(".py")}
    damage(command)
    damaged = seen(command)
    foretold = install(check=True)
    assert foretold == {"changed": True, "done": [f"write {command}: {reason}"]}
    assert seen(command) == damaged
    assert install() == foretold
    status = command.lstat()
    assert stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o755 and status.st_uid == os.geteuid()
    with zipfile.ZipFile(command) as archive:
        assert {
            member.filename: member.CRC for member in archive.infolist() if member.filename.endswith(".py")
        } == before
    assert install() == {"changed": False, "done": []}
    assert subprocess.run([PYTHON, str(command), "--help"], capture_output=True, check=False).returncode == 0


BOOT = """
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: openfleet.gpu.gpu_layout
        tasks_from: boot
"""


def test_role_shows_the_reason_in_check_mode(tmp_path):
    (tmp_path / "play.yml").write_text(BOOT)
    python = str(interpreter(tmp_path / "python3", python=PYTHON))
    given = {"gpu_layout": LAYOUT, "gpu_layout__root": str(tmp_path / "root"), "ansible_python_interpreter": python}
    words = [*warm_playbook.COMMAND, "-i", "localhost,", "-c", "local"]
    words += [str(tmp_path / "play.yml"), "-e", json.dumps(given)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}

    def play(*arguments):
        done = subprocess.run([*words, *arguments], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return " ".join(done.stdout.split())

    assert "gpu-layout:" not in play()
    another_bytecode(tmp_path / "root/usr/local/bin/gpu-layout")
    for arguments in (["--check"], []):
        said = play(*arguments)
        assert f"usr/local/bin/gpu-layout: {CONTENT}" in said and "changed=1 " in said


def test_module_requests_missing_sources_and_changes_nothing(install, tmp_path):
    assert run_installer(tmp_path, **asked(send=False))["sources_needed"]
    assert installed(tmp_path) == {}
    foretold = run_installer(tmp_path, **asked(check=True, send=False))
    assert foretold["changed"] and len(foretold["done"]) == 3
    install()
    result = run_installer(tmp_path, **asked(layout=[], send=False))
    assert result["done"] == [f"write {tmp_path}/etc/openfleet-gpu/layout.json"]
    assert result["diff"][0]["before"] == json.dumps(LAYOUT, indent=2) + "\n" and result["diff"][0]["after"] == "[]\n"


def test_sources_are_sent_only_on_request(tmp_path):
    """Send the sources only to hosts that request them.

    The test counts the bytes that Ansible sends, minus those that it sends for any module.
    """
    (tmp_path / "play.yml").write_text(BOOT + "    - ansible.builtin.ping:\n")
    given = {"gpu_layout": LAYOUT, "gpu_layout__root": str(tmp_path / "root"), "ansible_python_interpreter": PYTHON}
    given["gpu_layout_installed_code"] = False
    words = [*warm_playbook.COMMAND, "-i", "localhost,", "-c", "local"]
    settings = {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_KEEP_REMOTE_FILES": "1", "ANSIBLE_PIPELINING": "0"}

    def sent(run):
        more = ["-e", json.dumps(dict(given, ansible_remote_tmp=str(tmp_path / run)))]
        environment = {**os.environ, **settings, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        command = [*words, str(tmp_path / "play.yml"), *more]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        sizes = {name: [f.stat().st_size for f in (tmp_path / run).rglob(f"AnsiballZ_{name}.py")] for name in NAMES}
        (ping,) = sizes["ping"]
        return [size - ping for size in sizes["layout_boot"]]

    (first,), (second,) = sent("first"), sent("second")
    assert first > second + 100_000, "the sources, which the first run sent last"
    assert second < 54_500


NAMES = ("layout_boot", "ping")


def test_bytecode_runs_and_source_alone_is_enough(install, tmp_path):
    install()
    command = tmp_path / "usr/local/bin/gpu-layout"
    question = ["fits", "A30-24GB", "4x1g.6gb"]
    answer = subprocess.run([str(command), *question], capture_output=True, text=True, check=True).stdout
    assert answer.startswith("A30-24GB: 4x 1g.6gb fit")
    for name, keep in (("bytecode", ".pyc"), ("source", ".py")):
        copy = tmp_path / name
        with zipfile.ZipFile(command) as archive, zipfile.ZipFile(copy, "w") as other:
            for member in archive.infolist():
                if member.filename.endswith(keep):
                    other.writestr(member, archive.read(member))
                elif member.filename.endswith(".py"):
                    other.writestr(member, "raise SystemExit('the source was read')\n")
                elif not member.filename.endswith(".pyc"):
                    other.writestr(member, archive.read(member))
        done = subprocess.run([PYTHON, str(copy), *question], capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == (answer, ""), name
