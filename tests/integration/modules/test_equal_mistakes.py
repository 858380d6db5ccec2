# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that site.yml prints a mistake in group_vars only once.

This holds for every role.
"""

from __future__ import annotations

import re

import pytest
import yaml

from tests.integration.simulated_fleet import Fleet

HOSTS = ["node%02d" % number for number in range(6)]
NAMED = "node00, node01, node02, node03, node04 and 1 more hosts: "
MIG = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]
TYPO = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.45gb"}]}]
SPLIT = [
    {"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "compute_instances": ["1c.3g.40gb", "2c.3g.40gb"]}]}
]
# The group's wrong variables, and a part of the expected message.
MISTAKES = {
    "layout": ({"gpu_layout": TYPO}, "there is no profile 3g.45gb"),
    "variable": ({"gpu_layout_on_bussy": "drain"}, "gpu_layout_on_bussy: unknown variable"),
    "driver": ({"nvidia_driver_version": "123"}, "nvidia_driver_version: branch 123 is not available"),
    "toolkit": (
        {"container_toolkit_version": "1.17.8", "container_toolkit_runtimes": ["dockr"]},
        'container_toolkit_runtimes[0]: unknown value "dockr"',
    ),
    "exporter": (
        {"dcgm_exporter_source": "embedded", "dcgm_exporter_kubernetes": True},
        "need DCGM, but dcgm_exporter_source is embedded",
    ),
    "limiter": ({"vgpu_limiter_services": {"x.service": "team-a"}}, "vgpu_limiter_services names team-a"),
    "pynvml": (
        {"gpu_layout_nvml_source": "wheel", "gpu_layout_nvml_wheel": "/nonexistent/pynvml.whl"},
        "/nonexistent/pynvml.whl",
    ),
    "kubernetes": (
        {"gpu_layout": SPLIT, "gpu_kubernetes_backend": "nvidia_device_plugin", "gpu_kubernetes_state": "planned"},
        "3g.40gb is split into compute instances",
    ),
}
# Mistakes that the first play finds, before it contacts a host.
AT_ONCE = ("variable", "toolkit")
THOROUGH = ("limiter", "pynvml", "toolkit", "variable")


@pytest.fixture
def fleet(host, library, tmp_path):
    """Return hosts with one GPU each, with different UUIDs."""
    fleet = Fleet(tmp_path, library, HOSTS)
    for name, simulated in fleet.hosts.items():
        simulated.create([{"model": "H100-80GB", "count": 1}], host=name)
    fleet.without_layout = set(HOSTS)
    return fleet


def play(fleet, variables, *arguments):
    """Run site.yml with variables of the group gpu_hosts."""
    hosts = {name: fleet.variables(name, None) for name in HOSTS}
    # The simulated hosts' own variables must not override the group's variables.
    for own in hosts.values():
        for name in variables:
            own.pop(name, None)
    inventory = fleet.folder / "group.yml"
    inventory.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": hosts, "vars": {"gpu_layout": MIG, **variables}}}))
    return fleet.run("site.yml", inventory, *arguments)


def messages(run, part):
    """Return the printed messages that contain a text.

    Messages are errors, tasks' results and lines in the summary.
    """
    starts = r"\n(?=TASK|PLAY|fatal: |ok: |\[ERROR\]|\[WARNING\]|Failed: )"
    blocks = (" ".join(block.split()) for block in re.split(starts, run.stdout + run.stderr))
    return [block for block in blocks if part in block]


@pytest.mark.parametrize(
    "mistake", [pytest.param(name, marks=[pytest.mark.thorough] if name in THOROUGH else []) for name in MISTAKES]
)
def test_a_mistake_in_group_vars_is_one_message(fleet, mistake):
    variables, part = MISTAKES[mistake]
    run = play(fleet, variables)
    output = run.stdout + run.stderr
    assert run.returncode != 0
    assert "Apply the layout" not in output and "Nothing was changed." in " ".join(output.split())
    said = messages(run, part)
    # The play that ends the run has the message. The closing summary or an error of Ansible may also have it.
    assert 1 <= len(said) <= 2 and all(NAMED in message for message in said), output
    failed = re.findall(r"^(\S+) +: ok=\d+ .*failed=1 ", run.stdout, re.MULTILINE)
    fatal = re.findall(r"^fatal: \[(\S+)\]: FAILED!", run.stdout, re.MULTILINE)
    if mistake in AT_ONCE:
        assert len(fatal) == 1, output
    else:
        assert failed == sorted(fatal) == HOSTS, output
    assert set(map(str, fleet.seen().values())) == {"[]"}


def test_other_hosts_keep_their_plan(fleet):
    """Print one host's mistake with its name, and the other hosts' plans."""
    inventory = {name: {**fleet.variables(name, None), "gpu_layout": MIG} for name in HOSTS[:3]}
    inventory["node01"]["nvidia_driver_version"] = "123"
    file = fleet.folder / "group.yml"
    file.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": inventory}}))
    run = fleet.run("site.yml", file, "-e", "gpu_site_tolerate=2")
    assert run.returncode != 0
    said = " ".join((run.stdout + run.stderr).split())
    assert "node01: nvidia_driver_version: branch 123 is not available" in said
    assert "No plan for node01 (its error is above). Correct the errors above" in said
    assert re.search(r"node00.{0,80}3g\.40gb", said) and re.search(r"node02.{0,80}3g\.40gb", said)
    assert "Apply the layout" not in said and "fatal: [node00]" not in said
    assert fleet.seen()["node00"] == []


def test_verbose_output_has_the_error_of_each_host(fleet):
    run = play(fleet, MISTAKES["exporter"][0], "-v")
    said = " ".join((run.stdout + run.stderr).split())
    for host in HOSTS:
        assert f"{host}: dcgm_exporter_kubernetes and dcgm_exporter_remote_hostengine need DCGM" in said
