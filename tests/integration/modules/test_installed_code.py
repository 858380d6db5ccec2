# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run modules with the installed gpu-layout's code.

The results must be the same as without it. Hosts may run only code that equals the controller's code.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.install.build_command import read_sources, sources_digest
from ansible_collections.openfleet.gpu.plugins.module_utils.install.command_file import DIGEST_LENGTH, origin
from tests.integration.command_host import run_installer
from tests.integration.simulated_fleet import BareFleet, Fleet

MIG = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]
SHARED = [{"gpus": "all", "sharing": "shared"}]
DIGEST = sources_digest(read_sources())
COMMAND = "usr/local/bin/gpu-layout"


@pytest.fixture
def simulated(host):
    return host.create([{"model": "H100-80GB", "count": 2}])


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install the command once, because the installation compiles all code."""
    root = tmp_path_factory.mktemp("root")
    assert run_installer(root)["changed"]
    return root / COMMAND


@pytest.fixture
def command(simulated, installed):
    """Return the installed command in a folder of the host."""
    copy = simulated.folder / "root" / COMMAND
    copy.parent.mkdir(parents=True)
    shutil.copy2(installed, copy)
    return copy


@pytest.fixture
def both(simulated, command):
    """Return a function that runs the module layout twice in the same state.

    One run uses the installed code, and for the other run Ansible sends the whole module. The function returns both
    results.
    """

    def run(**arguments):
        arguments.setdefault("state_directory", str(simulated.folder / "state.d"))
        check = arguments.pop("check", False)
        installed = simulated.module(
            "installed_module", check, module="layout", command=str(command), digest=DIGEST, arguments=arguments
        )
        return installed, simulated.module("layout", check, **arguments)

    return run


def result(given):
    """Return a module's result without its input options."""
    return {key: value for key, value in given.items() if key != "invocation"}


@pytest.mark.core
@pytest.mark.host_python
def test_installed_and_sent_code_return_the_same(simulated, both):
    for arguments in (
        {"layout": MIG, "check": True},
        {"layout": [{"gpus": [9], "sharing": "shared"}]},
        {"layout": "no list", "check": True},
    ):
        installed, sent = both(**arguments)
        assert "code_needed" not in installed
        assert result(installed) == result(sent)
    assert installed["failed"] and installed["problems"]
    wanted, _ = both(layout=MIG)
    # The run with the installed code changed the GPUs, so the run with the whole module has nothing to change.
    assert wanted["changed"] and simulated.seen()[0] == [("3g.40gb", 0), ("3g.40gb", 4)]
    installed, sent = both(layout=MIG)
    assert not installed["changed"] and result(installed) == result(sent)
    installed, sent = both(layout=MIG, check=True)
    assert result(installed) == result(sent) and {"plan_data", "diff"} <= set(installed)


def asked(simulated, command, **changes):
    given = {"module": "layout", "command": str(command), "digest": DIGEST, "arguments": {"layout": MIG}, **changes}
    return simulated.module("installed_module", **given)


def another_owner(command):
    os.chown(command, 4711, 4711)


def writable(command):
    command.chmod(0o777)


def link(command):
    command.rename(command.with_name("elsewhere"))
    command.symlink_to("elsewhere")


def missing(command):
    command.unlink()


def another_code(command):
    """Add a file to the archive.

    The archive still claims that the controller's files are its source.
    """
    with zipfile.ZipFile(command, "a") as archive:
        archive.writestr("openfleet_gpu/more.py", "")


def older(command):
    """Write a valid command for the same Python from older sources."""
    sources = dict(read_sources(), **{"sizes.py": "# as it was\n"})
    content = command.read_bytes()[: -2 * DIGEST_LENGTH] + origin(sources_digest(sources))
    command.write_bytes(content + hashlib.sha256(content).hexdigest().encode())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (another_owner, "it belongs to user id 4711"),
        (writable, "its mode is 0777"),
        (link, "it is not a regular file"),
        (missing, "it is missing"),
        (another_code, "its content is not what was installed"),
        (older, "it is of another release, or of another Python"),
    ],
)
@pytest.mark.host_python
def test_code_that_differs_from_the_controllers_does_not_run(simulated, command, damage, reason):
    damage(command)
    said = asked(simulated, command)
    assert said["code_needed"] == reason and not said["changed"]
    assert simulated.seen()[0] == []


IMPORT = """
import sys
from pathlib import Path
from ansible_collections.openfleet.gpu.plugins.module_utils.install.command_file import origin
from ansible_collections.openfleet.gpu.plugins.module_utils.install.installed import open_code
command = Path(sys.argv[1])
sys.path.insert(0, open_code(command, origin(sys.argv[2])))
command.unlink()
command.write_bytes(b"another one")
from openfleet_gpu import catalogue
print(catalogue.__file__, len(catalogue.load_models()))
"""


def test_checked_code_keeps_running_while_the_command_is_replaced(simulated, command):
    done = simulated.run([simulated.python, "-c", IMPORT, str(command), DIGEST])
    file, models = done.stdout.split()
    assert file.startswith("/proc/self/fd/") and int(models) > 10


def test_code_of_another_python_does_not_run(simulated, command, tmp_path):
    other = tmp_path / "python3"
    other.symlink_to(simulated.python)
    simulated.python = str(other)
    assert asked(simulated, command)["code_needed"] == "it is of another release, or of another Python"


def test_wrong_arguments_are_reported_by_the_module(simulated, command):
    wrong = {"layout": MIG, "lock_timeout": "soon"}
    assert asked(simulated, command, arguments=wrong)["code_needed"] == "wrong arguments"
    assert asked(simulated, command, arguments={"layuot": MIG})["code_needed"] == "wrong arguments"


PLAY = """
- hosts: gpu_hosts
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: openfleet.gpu.gpu_layout
        tasks_from: boot
    - ansible.builtin.include_role:
        name: openfleet.gpu.gpu_layout
        tasks_from: verify
    - ansible.builtin.ping:
"""
#: Maximum bytes for each execution, in addition to those that Ansible sends for any module.
MOST_BYTES = 17_000


class Counted(Fleet):
    """Keep the modules that Ansible sends to the hosts."""

    sent = None

    def execute(self, command, environment, folder):
        environment.update(ANSIBLE_KEEP_REMOTE_FILES="1", ANSIBLE_PIPELINING="0")
        return super().execute([*command, "-vv", "-e", f"ansible_remote_tmp={self.sent}"], environment, folder)

    def run_play(self, run, **variables):
        """Return the sizes of the modules that a run sent, by name, and the run's output.

        The sizes do not include the bytes that Ansible sends for any module.
        """
        self.sent = self.folder / run
        self.more = {"one": variables}
        play = self.folder / "play.yml"
        play.write_text(PLAY)
        done = self.play({"one": SHARED}, playbook=str(play))
        assert done.returncode == 0, done.stdout + done.stderr
        sizes = {}
        for file in self.sent.rglob("AnsiballZ_*.py"):
            sizes.setdefault(file.stem.removeprefix("AnsiballZ_"), []).append(file.stat().st_size)
        (ping,) = sizes.pop("ping")
        return {name: [size - ping for size in found] for name, found in sizes.items()}, done.stdout


@pytest.mark.core
def test_run_without_changes_sends_no_code(host, library):
    fleet = Counted(host.folder, library, ["one"])
    first, said = fleet.run_play("first")
    assert "one: layout_boot is sent: it is missing" in said
    assert {name: len(sizes) for name, sizes in first.items()} == {"installed_module": 2, "layout_boot": 1}
    second, said = fleet.run_play("second")
    assert "is sent: " not in said and said.count("changed=0") == 1
    # Ansible executes the module once for each of the two tasks.
    assert list(second) == ["installed_module"] and len(second["installed_module"]) == 2
    assert max(second["installed_module"]) < MOST_BYTES, second
    whole, said = fleet.run_play("whole", gpu_layout_installed_code=False)
    assert {name: len(sizes) for name, sizes in whole.items()} == {"layout": 1, "layout_boot": 1}
    assert "is sent: " not in said and said.count("changed=0") == 1
    assert whole["layout"][0] > 10 * max(second["installed_module"])


class Bare(Counted):
    interpreter = BareFleet.interpreter


@pytest.mark.core
def test_python_without_pynvml_gets_the_module(host, library):
    """Send the whole module if the host's Python has no pynvml.

    A whole module can try another Python, or use pynvml from the controller. The installed code can do neither.
    """
    sent, said = Bare(host.folder, library, ["one"]).run_play("first")
    assert "one: layout is sent: its Python has no pynvml" in said
    assert {"layout", "layout_boot", "installed_module"} == set(sent)
