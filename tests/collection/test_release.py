# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow a release's README from its tarball in a clean environment on lab hosts.

A new virtual environment gets only ansible-core, the tarball and what the README installs. The tests run in order: the
README plans and applies a layout, and how-to pages undo one of its changes and uninstall the collection.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest
import yaml

from tests import how_to

ROOT = Path(__file__).parents[2]
VERSION = "0.9.0"
README = (ROOT / "README.md").read_text(encoding="utf-8")
LAB = f"release-{os.environ.get('OPENFLEET_CHECKOUT') or 'local'}"
#: Variables that only lab hosts need. A reader's hosts have an address, a driver and GPUs.
HOSTS = {
    "ansible_connection": "lab",
    "ansible_host": f"openfleet-{LAB}-{{{{ inventory_hostname }}}}",
    "ansible_podman_executable": str(ROOT / ".lab" / "bin" / "podman"),
    "ansible_python_interpreter": "/usr/bin/python3",
    "ansible_become": False,
    # This variant's image has the MPS control daemon.
    "lab_variant": "sharing",
    "lab_privileged": True,
    "lab_tmpfs": {"/var/lib/containers": "rw,size=1g"},
    "gpu_simulator_gpus": [{"model": "H100-80GB", "count": 3}],
}

pytestmark = pytest.mark.thorough


def readme(language):
    """Return the README's code blocks in a language."""
    text = README.partition("## Use it")[2].partition("\n## ")[0]
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.M | re.S)
    return [re.sub(r"^   ", "", each, flags=re.M) for each in found]


def run(command, folder, environment):
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        shell=isinstance(command, str),
        executable="/bin/bash" if isinstance(command, str) else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return " ".join(done.stdout.split())


@pytest.fixture(scope="module")
def tarball(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release")
    built = subprocess.run(
        [sys.executable, "tools/release/build.py", VERSION, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return Path(built.stdout.strip())


def read(tarball, name):
    with tarfile.open(tarball) as file:
        return file.extractfile(name).read().decode()


def test_its_metadata_name_the_version(tarball):
    assert json.loads(read(tarball, "MANIFEST.json"))["collection_info"]["version"] == VERSION
    assert f"## v{VERSION}".replace(".", "\\.") in read(tarball, "CHANGELOG.md")


def test_links_of_its_readme_are_absolute(tarball):
    links = re.findall(r"\]\(([^)\s]+)", read(tarball, "README.md"))
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_an_execution_environment_runs_the_playbook(tarball, tmp_path):
    """Run site.yml with ansible-runner in the image of the Containerfile.

    The image is built without a network, from the image of the lab hosts, because other images need a registry.
    """
    podman, image = str(ROOT / ".lab" / "bin" / "podman"), f"localhost/openfleet-{LAB}-environment"
    context, wheels, runner = tmp_path / "context", tmp_path / "wheels", tmp_path / "runner"
    with tarfile.open(tarball) as file:
        file.extractall(context)
    recipe = (context / "meta" / "Containerfile").read_text()
    programs = re.findall(r"ansible\S*==\S+", recipe)
    wanted = ["--requirement", str(context / "meta" / "execution-environment-python.txt")]
    python = ["--python-version", "3.11", "--only-binary", ":all:", "--dest", str(wheels)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet"]
    run([*pip, *python, *programs, *wanted], ROOT, dict(os.environ))
    base = (ROOT / ".lab" / "images" / "bookworm").read_text().strip()
    # These arguments make pip use the downloaded packages only.
    offline = [
        "--network=none",
        f"--volume={wheels}:/wheels:ro",
        "--env=PIP_NO_INDEX=1",
        "--env=PIP_FIND_LINKS=/wheels",
    ]
    given = ["--file", "meta/Containerfile", "--build-arg", f"BASE={base}", "--tag", image]
    (runner / "project").mkdir(parents=True)
    (runner / "inventory").mkdir()
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": "/usr/bin/python3",
        "gpu_simulator_gpus": HOSTS["gpu_simulator_gpus"],
        "gpu_layout": [{"gpus": "all", "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}],
    }
    (runner / "inventory" / "hosts.yml").write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {"gpu-01": host}}}))
    start = [podman, "run", "--rm", "--network=none", f"--volume={runner}:/runner", image]
    try:
        run([podman, "build", "--quiet", *offline, *given, "."], context, dict(os.environ))
        run([*start, "python", "-c", "import kubernetes, numpy, ortools, pynvml"], ROOT, dict(os.environ))
        site = ["ansible-runner", "run", "/runner", "--playbook", "openfleet.gpu.site", "--cmdline=--check"]
        said = run([*start, *site], ROOT, dict(os.environ))
    finally:
        subprocess.run([podman, "rmi", "--force", image], capture_output=True, check=False)
    assert "Plan: 6 to create, 0 to destroy, 0 kept" in said


def lab_collections(folder):
    """Write and return a directory with the collection of the lab's connection."""
    collections = folder / "ansible_collections"
    collections.mkdir(parents=True)
    (collections / "containers").symlink_to(Path(sysconfig.get_path("purelib"), "ansible_collections", "containers"))
    return folder


class Desk:
    """A reader's directory, home and shell, and the inventory's lab hosts."""

    def __init__(self, folder, tarball):
        self.folder, self.tarball = folder / "desk", tarball
        self.folder.mkdir()
        home = folder / "home"
        home.mkdir()
        self.environment = {
            name: value for name, value in os.environ.items() if not re.match("ANSIBLE_|PYTHON|VIRTUAL_ENV|XDG_", name)
        }
        self.environment.update(
            HOME=str(home),
            NO_COLOR="1",
            # Ansible reaches lab hosts through this connection. The connection needs a collection from this checkout's
            # environment.
            ANSIBLE_CONNECTION_PLUGINS=str(ROOT / "tests" / "lab" / "connection"),
            ANSIBLE_COLLECTIONS_PATH=f"{home}/.ansible/collections:{lab_collections(folder / 'lab')}",
            GIT_CONFIG_COUNT="2",
            GIT_CONFIG_KEY_0="user.name",
            GIT_CONFIG_VALUE_0="operator",
            GIT_CONFIG_KEY_1="user.email",
            GIT_CONFIG_VALUE_1="operator@example.org",
        )

    def type(self, command):
        """Run a command in the reader's shell, and return its output in one line."""
        # This machine's package index may be a mirror.
        command = command.replace("git+https://git.example.org/openfleet.gpu.git", shlex.quote(str(self.tarball)))
        return run(f"[ ! -d venv ] || . venv/bin/activate; {command}", self.folder, self.environment)

    def lab(self, playbook):
        """Start or remove the lab hosts with this checkout's tools."""
        environment = dict(os.environ, OPENFLEET_LAB=LAB, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"))
        program = Path(sys.executable).with_name("ansible-playbook")
        command = [str(program), "-i", str(self.folder / "hosts.yml"), f"tests/lab/{playbook}.yml"]
        run(command, ROOT, {**environment, "PATH": f"{program.parent}:{os.environ['PATH']}"})

    def on_host(self, name, command):
        podman = str(ROOT / ".lab" / "bin" / "podman")
        return run([podman, "exec", f"openfleet-{LAB}-{name}", "sh", "-c", command], ROOT, dict(os.environ))

    def instances(self):
        """Return each host's number of MIG instances, from the simulator."""
        names = yaml.safe_load(readme("yaml")[0])["gpu_hosts"]["hosts"]
        return {name.partition(".")[0]: self.on_host(name, "gpusim show --json").count('"MIG-') for name in names}


@pytest.fixture(scope="module")
def desk(tarball, tmp_path_factory):
    made = Desk(tmp_path_factory.mktemp("reader"), tarball)
    for command in how_to.prompted(readme("console")[0], "$"):
        made.type(command)
    (made.folder / "ansible.cfg").write_text(readme("ini")[0])
    for text in readme("yaml"):
        path = made.folder / re.match(r"# (\S+)\n", text)[1]
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (made.folder / "group_vars" / "all.yml").write_text(yaml.safe_dump(HOSTS))
    try:
        made.lab("create")
        # A reader's hosts have GPUs.
        made.type("ansible-playbook -i hosts.yml openfleet.gpu.site --tags gpu_simulator")
        made.type("git init --quiet && git add hosts.yml group_vars && git commit --quiet --message 'layout'")
        yield made
    finally:
        made.lab("destroy")


def test_the_readme_plans_and_applies_a_layout(desk):
    check, apply = [how_to.prompted(each, "$")[0] for each in readme("console")[1:3]]
    (plan,) = readme("text")
    said = desk.type(check)
    for line in plan.splitlines():
        assert re.search(re.sub(r"GPU\\-[0-9a-f]{8}", "GPU-[0-9a-f]{8}", re.escape(line)), said), (line, said)
    assert set(desk.instances().values()) == {0}
    desk.type(apply)
    assert desk.instances() == {"gpu-01": 3, "gpu-02": 3}
    assert not re.search(r"changed=[1-9]", desk.type(apply))


def test_ansible_runner_runs_the_playbook(desk):
    """Run site.yml as AWX and ansible-navigator do, without an image."""
    desk.type("pip install --quiet ansible-runner==2.4.3")
    desk.type("mkdir -p runner/project && cp ansible.cfg runner/project")
    said = desk.type(
        "ansible-runner run runner --inventory $PWD/hosts.yml --playbook openfleet.gpu.site --cmdline=--check"
    )
    assert "nothing to do: gpu-01.example.org, gpu-02.example.org" in said


def test_a_how_to_undoes_a_change(desk):
    layout = desk.folder / "group_vars" / "gpu_hosts.yml"
    layout.write_text(
        layout.read_text().replace("{profile: 3g.40gb}, {profile: 2g.20gb, count: 2}", "{profile: 7g.80gb}")
    )
    desk.type("git commit --quiet --all --message 'one large instance'")
    desk.type("ansible-playbook -i hosts.yml openfleet.gpu.site")
    assert desk.instances() == {"gpu-01": 1, "gpu-02": 1}
    for command in how_to.commands("undo-a-change.md", "$"):
        desk.type(command)
    assert desk.instances() == {"gpu-01": 3, "gpu-02": 3}


def test_a_how_to_uninstalls_it(desk):
    """Remove the collection, and with it the simulated GPUs.

    tests/integration/modules/test_how_to.py follows the last step, which turns MIG mode off.
    """
    check, remove, _turn_off = how_to.commands("uninstall.md", "$")
    desk.type(check)
    assert desk.instances() == {"gpu-01": 3, "gpu-02": 3}
    (stays,) = how_to.blocks("uninstall.md", "text")
    assert stays.strip().replace("one:", "gpu-01.example.org:") in desk.type(remove)
    assert (
        desk.on_host("gpu-01.example.org", "find /etc /usr/local -name '*gpu-layout*' -o -name '*openfleet-gpu*'") == ""
    )
