# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that was taken over: what it says must name nothing on the controller or in a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.plugin_utils.fleet.page import to_text

ROOT = Path(__file__).resolve().parents[2]
#: Records a node as drained by the module itself, then brings the clients back by the role.
RESUME = """
- hosts: localhost
  gather_facts: false
  tasks:
    - openfleet.gpu.drain:
        state: drained
        kubernetes: {node: "{{ recorded }}", cordoned_before: false}
        state_directory: "{{ gpu_drain_state_directory }}"
    - ansible.builtin.include_role:
        name: openfleet.gpu.gpu_drain
        tasks_from: resume.yml
"""


def play(tmp_path: Path, **variables) -> subprocess.CompletedProcess:
    playbook = tmp_path / "resume.yml"
    playbook.write_text(RESUME)
    variables["gpu_drain_state_directory"] = str(tmp_path / "state")
    given = json.dumps({"ansible_python_interpreter": sys.executable, **variables})
    ansible = str(Path(sys.executable).with_name("ansible-playbook"))
    return subprocess.run(
        [ansible, "-i", "localhost,", "-c", "local", str(playbook), "-e", given],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="a drain needs root")
@pytest.mark.parametrize(
    "variables",
    [
        {"recorded": "victim"},
        {"recorded": "victim", "gpu_drain_kubernetes": True, "gpu_drain_kubernetes_node": "gpu-1"},
    ],
    ids=["where Kubernetes is not asked for", "where the inventory names another node"],
)
def test_its_record_uncordons_no_node_but_its_own(tmp_path, variables):
    # A kubeconfig that leads nowhere: whoever tried to reach the cluster would say so.
    done = play(tmp_path, gpu_drain_kubernetes_kubeconfig=str(tmp_path / "none"), **variables)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    assert 'its record says that a drain cordoned the Kubernetes node "victim"' in said
    assert "No node was uncordoned" in said and "k8s_drain" not in said
    assert (tmp_path / "state" / "drain.json").exists()


SCRIPT = '"><script>alert(1)</script>'


def hostile(**changes) -> dict:
    instance = {"profile": "1g.10gb" + SCRIPT, "placement": {"start": 0, "size": 1}}
    gpu = {
        **dict.fromkeys(("name", "asked", "before", "after"), SCRIPT),
        "index": 0,
        "changed": SCRIPT,
        "placement_units": 8,
        "instances": [instance],
    }
    return {"summary": SCRIPT, "hosts": [{"name": SCRIPT, "note": SCRIPT, "gpus": [{**gpu, **changes}]}]}


@pytest.mark.parametrize("changes", [{}, {"instances": []}])
def test_its_words_are_text_in_the_report(changes):
    page = to_text(hostile(**changes))
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "Content-Security-Policy\" content=\"default-src 'none'" in page


@pytest.mark.parametrize(
    "changes",
    [
        {"index": SCRIPT},
        {"placement_units": "8, 1fr); background: url(//x"},
        {"instances": [{"profile": "1g", "placement": {"start": SCRIPT, "size": 1}}]},
        {"instances": [{"profile": "1g", "placement": {"start": 0, "size": SCRIPT}}]},
    ],
)
def test_its_numbers_are_numbers_in_the_report(changes):
    with pytest.raises(ValueError):
        to_text(hostile(**changes))
