# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the role's and site.yml's decisions with the real ansible-playbook.

The plays connect to no host.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.integration.vgpu_limiter.vgpu_limiter_host import HOST_PYTHON, REPOSITORY
from tests.lab import warm_playbook


def play(
    tmp_path: Path, tasks: list[dict], *hosts: dict, options: Sequence[str] = (), **settings: str
) -> subprocess.CompletedProcess:
    """Run tasks on host-0, host-1 and so on.

    Each host has its own variables.
    """
    playbook = tmp_path / "playbook.yml"
    inventory = tmp_path / "hosts.yml"
    here = {"ansible_connection": "local", "ansible_python_interpreter": HOST_PYTHON}
    named = {"host-%d" % number: {**here, **variables} for number, variables in enumerate(hosts)}
    inventory.write_text(yaml.safe_dump({"all": {"hosts": named}}))
    playbook.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    environment = dict(
        os.environ,
        ANSIBLE_CONFIG=str(REPOSITORY / "ansible.cfg"),
        ANSIBLE_COLLECTIONS_PATH=str(REPOSITORY / "collections"),
        ANSIBLE_STDOUT_CALLBACK="default",
        ANSIBLE_CACHE_PLUGIN="memory",
        ANSIBLE_NOCOLOR="1",
        **settings,
    )
    return subprocess.run(
        [*warm_playbook.COMMAND, "-i", str(inventory), *options, str(playbook)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )


@pytest.mark.parametrize("again", [False, True])
def test_still_missing_compiler_fails(tmp_path, again):
    """Fail if a host has no compiler even after installing its packages.

    The host then gets no library.
    """
    root = tmp_path / "root"
    role = {"name": "openfleet.gpu.vgpu_limiter", "tasks_from": "install"}
    variables = {"vgpu_limiter__again": True} if again else {}
    done = play(
        tmp_path,
        [{"ansible.builtin.import_role": role, "vars": variables, "environment": {"PATH": str(tmp_path)}}],
        {"vgpu_limiter__root": str(root)},
    )
    told = " ".join((done.stdout + done.stderr).split())
    assert not root.exists()
    assert (done.returncode != 0) == again, told
    assert ("cc and make not found in PATH" in told and "vgpu_limiter_packages" in told) == again


def test_dry_run_on_a_bare_host_predicts_and_installs_nothing(tmp_path):
    role = [{"ansible.builtin.import_role": {"name": "openfleet.gpu.vgpu_limiter"}}]
    done = play(tmp_path, role, {"vgpu_limiter__root": str(tmp_path / "root")}, options=["--check"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=1 " in done.stdout, done.stdout
    assert not (tmp_path / "root").exists()


def test_sources_are_sent_once(tmp_path):
    """Send the sources only once.

    The test counts the bytes that Ansible sends, minus those that it sends for any module.
    """
    role = [{"ansible.builtin.import_role": {"name": "openfleet.gpu.vgpu_limiter"}}, {"ansible.builtin.ping": None}]
    keep = {"ANSIBLE_KEEP_REMOTE_FILES": "1", "ANSIBLE_PIPELINING": "0"}

    def sent(run):
        variables = {"vgpu_limiter__root": str(tmp_path / "root"), "ansible_remote_tmp": str(tmp_path / run)}
        done = play(tmp_path, role, variables, **keep)
        assert done.returncode == 0, done.stdout + done.stderr
        sizes = {name: [f.stat().st_size for f in (tmp_path / run).rglob(f"AnsiballZ_{name}.py")] for name in NAMES}
        (ping,) = sizes["ping"]
        return done.stdout, [size - ping for size in sizes["vgpu_limiter"]]

    # Ansible executes a task twice, and the second file overwrites the first.
    (said, (first,)), (said_again, (second,)) = sent("first"), sent("second")
    assert "changed=1 " in said and "changed=0 " in said_again
    assert first > second + 50_000, "the sources, which the first run sent last"
    # The limit covers two parts of the code for every task. One part finds processes that have mapped a library, for
    # every thread and in a child process. The other part checks for containers that a reload of systemd would detach
    # from their GPUs.
    assert second < 61_000
    assert (tmp_path / "root/usr/lib/openfleet-gpu/vgpu/libopenfleet-vgpu.so").exists()


NAMES = ("vgpu_limiter", "ping")
TENANT = [{"gpus": [0], "sharing": "vgpu", "vgpu": {"tenants": [{"name": "a", "memory": "1GiB", "sm_percent": 10}]}}]
STEPS = {"plan_data": {"vgpu": {"steps": [{"step": "RemoveTenant", "name": "a"}]}}}


@pytest.mark.parametrize(("service", "unknown"), [("a", ""), ("old", ""), ("c", "c")])
def test_service_can_use_an_earlier_name_of_a_tenant(printed, service, unknown):
    assert f"{service}: <{unknown}>" in printed


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Print each service's unknown tenants in a play, and return its output."""
    tenants = [dict(TENANT[0]["vgpu"]["tenants"][0], was="old"), {"name": "b", "memory": "1GiB", "sm_percent": 10}]
    layout = [{"gpus": [0], "sharing": "vgpu", "vgpu": {"tenants": tenants}}, {"gpus": [1], "sharing": "shared"}]
    own = yaml.safe_load((REPOSITORY / "roles/vgpu_limiter/vars/main.yml").read_text())
    names = {name: own[name] for name in own if name.endswith(("__needs", "__unknown_tenants"))}
    hosts = [
        {**names, "gpu_layout": layout, "service": service, "vgpu_limiter_services": {"x.service": service}}
        for service in ("a", "old", "c")
    ]
    said = {"msg": "{{ service }}: <{{ vgpu_limiter__unknown_tenants | join(',') }}>"}
    done = play(tmp_path_factory.mktemp("unknown"), [{"ansible.builtin.debug": said}], *hosts)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


#: A host's variables, and whether site.yml runs the role on this host.
WANTED = [
    ({"gpu_layout": []}, False),
    ({"gpu_layout": [], "gpu_layout_planned": {"plan_data": {"vgpu": {"steps": []}}}}, False),
    # The driver did not respond.
    ({"gpu_layout": [], "gpu_layout_planned": {"driver_present": False}}, False),
    ({"gpu_layout": TENANT}, True),
    ({"gpu_layout": [], "vgpu_limiter_services": {"a.service": "a"}}, True),
    # The run removes the last tenant. The inventory no longer has the service that used this tenant.
    ({"gpu_layout": [], "gpu_layout_planned": STEPS}, True),
    ({"gpu_layout": TENANT, "vgpu_limiter_state": "absent"}, False),
]


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    """Return the hosts on which site.yml's task runs the role in one run."""
    plays = yaml.safe_load((REPOSITORY / "playbooks" / "site.yml").read_text())
    (apply,) = (play["tasks"][0]["block"] for play in plays if play["name"].startswith("Apply"))
    names = [task.get("ansible.builtin.import_role", {}).get("name") for task in apply]
    before = apply[: names.index("openfleet.gpu.gpu_layout")]
    (limiter,) = [
        task
        for task in before
        if task.get("ansible.builtin.include_role", {}).get("name") == "openfleet.gpu.vgpu_limiter"
    ]
    task = {"ansible.builtin.debug": {"msg": "the role runs"}, "when": limiter["when"]}
    done = play(tmp_path_factory.mktemp("brought"), [task], *(variables for variables, _runs in WANTED))
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"^ok: \[(host-\d)\]", done.stdout, re.MULTILINE))


@pytest.mark.core
@pytest.mark.host_python
@pytest.mark.parametrize("number", range(len(WANTED)))
def test_site_installs_the_limiter_where_it_is_needed_or_installed(brought, number):
    assert ("host-%d" % number in brought) == WANTED[number][1], WANTED[number]
