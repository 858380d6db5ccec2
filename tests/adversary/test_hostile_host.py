# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a compromised host cannot choose paths or names for the controller.

This includes paths on the controller and names in a cluster.
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import threading
from pathlib import Path

import pytest
from ansible.release import __version__ as ansible_version

from ansible_collections.openfleet.gpu.plugins.plugin_utils import host_results
from ansible_collections.openfleet.gpu.plugins.plugin_utils.audit.prometheus import Access, Prometheus
from ansible_collections.openfleet.gpu.plugins.plugin_utils.fleet.page import to_text
from tests.adversary.attackers import ROOT, HostileHost, play, said
from tests.audit.rightsize_hosts import gpu, state
from tests.integration.warm_ansible import interpreter
from tests.lab.kubernetes_api import KubernetesApi

#: Records a node as drained with the module, and then restarts the clients with the role.
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


def localhost(folder: Path) -> dict[str, dict]:
    """Return an inventory with only this machine."""
    # An interpreter that has loaded the modules that uncordon a node.
    python = str(interpreter(folder / "python3", also=["kubernetes.dynamic"]))
    return {"localhost": {"ansible_connection": "local", "ansible_python_interpreter": python}}


def resume(tmp_path: Path, **variables) -> subprocess.CompletedProcess:
    playbook = tmp_path / "resume.yml"
    playbook.write_text(RESUME)
    given = json.dumps({**variables, "gpu_drain_state_directory": str(tmp_path / "state")})
    return play(tmp_path, playbook, {"all": {"hosts": localhost(tmp_path)}}, "-e", given)


@pytest.mark.skipif(os.geteuid() != 0, reason="a drain needs root")
@pytest.mark.parametrize(
    "variables",
    [
        {"recorded": "victim"},
        {"recorded": "victim", "gpu_drain_kubernetes": True, "gpu_drain_kubernetes_node": "gpu-1"},
    ],
    ids=["where Kubernetes is not asked for", "where the inventory names another node"],
)
def test_record_of_a_host_uncordons_only_its_own_node(tmp_path, variables):
    # The kubeconfig has no cluster, so any attempt to contact one fails.
    done = resume(tmp_path, gpu_drain_kubernetes_kubeconfig=str(tmp_path / "none"), **variables)
    assert done.returncode != 0
    assert 'its record says that a drain cordoned the Kubernetes node "victim"' in said(done)
    assert "No node was uncordoned" in said(done) and "k8s_drain" not in said(done)
    assert (tmp_path / "state" / "drain.json").exists()


SCRIPT = '"><script>alert(1)</script>'


ANNOTATION = "openfleet.gpu/cordoned-for-drain"


@pytest.fixture
def cluster(tmp_path):
    api = KubernetesApi(tmp_path)
    yield api
    api.server.shutdown()


@pytest.mark.skipif(os.geteuid() != 0, reason="a drain needs root")
def test_record_of_a_host_does_not_uncordon_a_node_cordoned_by_an_administrator(tmp_path, cluster):
    """Keep the administrator's cordon.

    The host's record claims that a drain cordoned the node, but the cluster does not confirm it.
    """
    cluster.unschedulable = True
    node = {"gpu_drain_kubernetes": True, "gpu_drain_kubernetes_node": "n1"}
    done = resume(tmp_path, recorded="n1", gpu_drain_kubernetes_kubeconfig=str(cluster.kubeconfig), **node)
    assert done.returncode == 0, said(done)
    assert cluster.unschedulable and cluster.requests == []
    assert "Kubernetes node n1 stays cordoned. It has no annotation %s" % ANNOTATION in said(done)
    assert "kubectl uncordon n1" in said(done)


@pytest.mark.skipif(os.geteuid() != 0, reason="a drain needs root")
def test_node_cordoned_by_a_drain_is_uncordoned_once(tmp_path, cluster):
    """Uncordon a node that a drain has cordoned, but only once.

    The annotation is removed with the cordon, so a later cordon is an administrator's.
    """
    cluster.unschedulable, cluster.annotations = True, {ANNOTATION: "localhost", "others": "kept"}
    node = {"gpu_drain_kubernetes": True, "gpu_drain_kubernetes_node": "n1", "recorded": "n1"}
    done = resume(tmp_path, gpu_drain_kubernetes_kubeconfig=str(cluster.kubeconfig), **node)
    assert done.returncode == 0, said(done)
    assert (cluster.unschedulable, cluster.annotations) == (False, {"others": "kept"})
    cluster.unschedulable = True
    done = resume(tmp_path, gpu_drain_kubernetes_kubeconfig=str(cluster.kubeconfig), **node)
    assert done.returncode == 0 and cluster.unschedulable, said(done)


#: Drains only the node with the role, and no services on the host.
DRAIN = (
    RESUME.partition("    - openfleet.gpu.drain:")[0]
    + """
    - ansible.builtin.include_role:
        name: openfleet.gpu.gpu_drain
        tasks_from: "{{ item }}.yml"
      loop: "{{ entries }}"
"""
)


@pytest.fixture
def drain(tmp_path, cluster):
    """Return a function that runs entries of the role, and returns the output."""
    playbook = tmp_path / "drain.yml"
    playbook.write_text(DRAIN)
    own = {"gpu_drain_state_directory": str(tmp_path / "state"), "gpu_drain_kubernetes_node": "n1"}
    own.update(gpu_drain_kubernetes=True, gpu_drain_kubernetes_kubeconfig=str(cluster.kubeconfig))

    def run(*entries, code=0):
        given = json.dumps({**own, "entries": entries})
        done = play(tmp_path, playbook, {"all": {"hosts": localhost(tmp_path)}}, "-e", given)
        assert done.returncode == code, said(done)
        return said(done)

    return run


@pytest.mark.skipif(os.geteuid() != 0, reason="a drain needs root")
def test_cordon_between_read_and_patch_stays_the_administrators(cluster, drain):
    """Keep an administrator's cordon.

    An administrator can take over the drain's cordon by removing the annotation right before the drain uncordons the
    node.
    """
    cluster.meanwhile = [{"unschedulable": True}]
    assert "Kubernetes node n1 stays cordoned" in drain("drain", "resume")
    assert (cluster.unschedulable, cluster.annotations, cluster.requests) == (True, {}, [])
    cluster.unschedulable, cluster.annotations = True, {ANNOTATION: "localhost"}
    cluster.meanwhile = [{"annotations": {}}]
    assert "Kubernetes node n1 stays cordoned" in drain("drain", "resume")
    assert (cluster.unschedulable, cluster.requests) == (True, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="a drain needs root")
def test_changing_node_is_cordoned_with_limited_retries(cluster, drain):
    """Limit the retries while other clients keep changing the node.

    The node changes before each patch, so the cluster refuses each one and the drain must retry.
    """
    cluster.meanwhile = [{"annotations": {"others": "new"}}, {"annotations": {"others": "newer"}}]
    drain("drain")
    assert cluster.annotations == {ANNOTATION: "localhost", "others": "newer"} and cluster.requests == ["cordon"]
    cluster.meanwhile = [{"annotations": {ANNOTATION: "host %d" % number}} for number in range(1000)]
    told = drain("resume", code=2)
    assert "because uncordoning" in told and "testing value" in told
    assert cluster.unschedulable and len(cluster.meanwhile) == 995


@pytest.mark.skipif(os.geteuid() != 0, reason="a drain needs root")
@pytest.mark.parametrize("before", [False, True], ids=["schedulable before", "cordoned before"])
def test_drain_records_its_cordon_in_the_cluster(tmp_path, cluster, drain, before):
    cluster.unschedulable = before
    drain("drain")
    assert cluster.unschedulable
    assert cluster.annotations == ({} if before else {ANNOTATION: "localhost"})
    # A drain that continues after the controller was lost finds its own cordon.
    (tmp_path / "state/drain.json").unlink()
    drain("drain", "resume")
    assert cluster.unschedulable is before
    assert cluster.annotations == {}
    assert cluster.requests == ([] if before else ["cordon", "uncordon"])


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
def test_strings_of_a_host_are_text_in_the_report(changes):
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
def test_numbers_of_a_host_are_numbers_in_the_report(changes):
    with pytest.raises(ValueError):
        to_text(hostile(**changes))


# --- results of its modules -----------------------------------------------------------------------------------------

#: A text that would act on a terminal, a template, a shell, a page or a path.
WORDS = "{{ lookup('pipe', 'touch PWNED') }}$(touch PWNED)`touch PWNED`<script>x</script>\x1b[2J\r\x85\u2028\u202e../../PWNED"


def facts(folder: Path) -> dict:
    """Return facts with the names of inventory variables.

    Roles use these variables to write, read and print on the controller.
    """
    return {
        "gpu_report_dir": str(folder / "stolen"),
        "gpu_layout_plan_out": str(folder / "stolen.json"),
        "gpu_rightsize_reclaim_log": str(folder / "stolen.log"),
        "gpu_drain_kubernetes": True,
        "gpu_drain_kubernetes_node": "victim",
        "gpu_drain_kubernetes_kubeconfig": str(folder / "none"),
        "nvidia_driver_version": "580.65.06",
        "nvidia_driver_source": "runfile",
        "nvidia_driver_runfile": "/etc/hostname",
        "ansible_connection": "ssh",
        "ansible_python_interpreter": "/nowhere",
    }


def layout_result(words: str) -> dict:
    """Return a result of the module layout that has these words in every text."""
    row = {
        "index": 0, "uuid": "GPU-0", "name": "NVIDIA H100", "entry": words, "asked": words, "before": words, "after": words,
        "changed": False, "placement_units": 8, "instances": [],
    }  # fmt: skip
    return {
        "changed": False,
        "driver_present": True,
        "plan": [words],
        "plan_lines": [{"index": 0, "uuid": "GPU-0", "text": words}],
        "plan_data": {"schema": 4, "gpus": [{"plan": words}], "vgpu": {"steps": []}},
        "counts": {"create": 0, "destroy": 0, "keep": 0, "gpus_changed": 0},
        "gpus": [row],
        "reboot_required": False,
        # The result of a role's command on a host.
        "rc": 0,
        "stdout": json.dumps({"changed": False, "done": [words]}),
    }


def site(tmp_path, *hostile: HostileHost, settings=None, **environment) -> subprocess.CompletedProcess:
    """Run site.yml on these hosts in check mode.

    The run saves the plan and writes a report.
    """
    layout = [{"gpus": "all", "sharing": "shared"}]
    own = {"gpu_layout": layout, "gpu_layout_nvml_source": "none", "gpu_layout_restore_at_boot": False}
    hosts = {"bad%d" % n: {**each.variables, **own} for n, each in enumerate(hostile)}
    inventory = {"gpu_hosts": {"hosts": hosts, "vars": settings or {}}}
    return play(tmp_path, ROOT / "playbooks/site.yml", inventory, "--check", **environment)


def test_facts_of_a_host_set_no_variable_of_the_inventory(tmp_path):
    words = WORDS.replace("PWNED", str(tmp_path / "pwned"))
    answer = {**layout_result(words), "ansible_facts": facts(tmp_path)}
    # The result for the host's container toolkit, whose version causes a warning in the report.
    answer.update(vulnerable=words, notes=[])
    own = {"gpu_report_dir": str(tmp_path / "report"), "gpu_layout_plan_out": str(tmp_path / "plan.json")}
    own["container_toolkit_version"] = "1.19.1"
    # Use two hosts, because each could set variables for the other one's tasks.
    bad = [HostileHost(tmp_path / name, answer) for name in ("a", "b")]
    done = site(tmp_path, *bad, settings=own)
    assert done.returncode == 0, said(done)
    assert bad[0].asked.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a",
        "b",
        "inventory.json",
        "plan.json",
        "report",
    ]
    # The report has the host's strings only in escaped form.
    for name in ("report.txt", "report.html", "report.json"):
        text = (tmp_path / "report" / name).read_text()
        assert "lookup" in text
        assert name != "report.html" or "<script" not in text
        assert not {"\x1b", "\r", "\x85", "\u2028", "\u202e"} & set(text)
    warned = [host["warnings"] for host in json.loads((tmp_path / "report/report.json").read_text())["hosts"]]
    assert [len(each) for each in warned] == [1, 1] and "lookup" in warned[0][0]


@pytest.mark.parametrize(
    "failed", [{}, {"failed": True, "msg": "gpu 0 is lost", "host_fault": True}], ids=["", "fails"]
)
def test_invalid_plan_of_a_host_does_not_end_saving_plans(tmp_path, failed):
    """Save the plans of the other hosts.

    One task saves the plans of all hosts.
    """
    bad = HostileHost(tmp_path / "a", {**layout_result("x"), "plan_data": "y\x1b[2J", **failed})
    good = HostileHost(tmp_path / "b", layout_result("x"))
    own = {"gpu_layout_plan_out": str(tmp_path / "plan.json"), "gpu_site_tolerate": 1}
    told = " ".join(said(site(tmp_path, bad, good, settings=own)).split())
    assert list(json.loads((tmp_path / "plan.json").read_text())["hosts"]) == ["bad1"]
    reason = failed.get("msg", 'plan_data: the host sent "y\\x1b[2J", which is not a plan')
    assert "bad0: " + reason in told.replace("\\\\", "\\").replace('\\"', '"'), told
    assert "is undefined" not in told and "'bad1'" not in told


def test_injected_facts_are_refused_before_hosts_are_read(tmp_path):
    bad = HostileHost(tmp_path / "a", {**layout_result("x"), "ansible_facts": facts(tmp_path)})
    done = site(tmp_path, bad, ANSIBLE_INJECT_FACT_VARS="True")
    assert done.returncode != 0 and not bad.asked.exists()
    assert "inject_facts_as_vars = False" in said(done) and "Nothing was changed." in said(done)
    assert "OPENFLEET_GPU_TRUST_FACTS=1" in said(done)


def test_injected_facts_are_allowed_for_trusted_hosts(tmp_path):
    good = HostileHost(tmp_path / "a", layout_result("x"))
    done = site(tmp_path, good, ANSIBLE_INJECT_FACT_VARS="True", OPENFLEET_GPU_TRUST_FACTS="1")
    assert done.returncode == 0 and good.asked.exists(), said(done)


@pytest.mark.parametrize("playbook", ["site", "audit", "rightsize", "reset", "bundle", "accept", "check_gpu", "export"])
def test_every_playbook_checks_injected_facts_first(playbook):
    """Check for injected facts first in every playbook.

    The check must be the first task of the first play, and of the play that reads results, because a play without hosts
    is skipped.
    """
    import yaml

    plays = yaml.safe_load((ROOT / "playbooks" / (playbook + ".yml")).read_text())
    # The check of the inventory, which runs earlier, reads no host.
    imported = [each["import_playbook"] for each in plays if "import_playbook" in each]
    assert set(imported) <= {"plays/some_hosts.yml"}
    plays = [each for each in plays if not each.get("hosts", "{{").startswith("{{")]
    for number, each in enumerate(plays):
        if number == 0 or each["hosts"] == "localhost":
            assert each["tasks"][0].get("ansible.builtin.import_tasks") == "tasks/facts.yml"


#: Roles and entry points that need not check for injected facts first, with the reason.
WITHOUT_CHECK = {
    "gpu_audit": "runs on a control host, not on a GPU host",
    "gpu_monitoring": "runs on a monitoring host, not on a GPU host",
    "gpu_simulator": "runs on test hosts",
    "dcgm_exporter/plan": "contacts no host",
    "vgpu_limiter/plan": "contacts no host",
    "gpu_kubernetes/prepare": "follows the entry point plan",
    "gpu_kubernetes/remove": "reads only the cluster",
    "gpu_layout/verify": "follows the entry point main",
    "gpu_layout/reset": "follows the check of reset.yml",
}


def roles_that_check():
    """Return the entry points that must check for injected facts.

    An example is "gpu_layout/plan".
    """
    import yaml

    names = [
        "%s/%s" % (path.parts[-3], entry)
        for path in sorted(ROOT.glob("roles/*/meta/argument_specs.yml"))
        for entry in yaml.safe_load(path.read_text())["argument_specs"]
    ]
    exempt = {name for name in names if name in WITHOUT_CHECK or name.partition("/")[0] in WITHOUT_CHECK}
    assert {key for key in WITHOUT_CHECK if "/" in key} <= exempt
    return [name for name in names if name not in exempt]


@pytest.mark.parametrize("role", roles_that_check())
def test_role_used_alone_checks_injected_facts_first(tmp_path, role):
    """Check for injected facts first in every role.

    Otherwise, a host could return a fact named nvidia_driver_runfile, and the role would copy this file from the
    controller to the host.
    """
    bad = HostileHost(tmp_path / "a", {**layout_result("x"), "ansible_facts": facts(tmp_path)})
    name, _slash, entry = role.partition("/")
    task = {"ansible.builtin.include_role": {"name": "openfleet.gpu." + name, "tasks_from": entry}}
    playbook = tmp_path / "play.yml"
    playbook.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    # The variables that an entry point requires.
    required = {"gpu_layout": [], "gpu_kubernetes_backend": "nvidia_device_plugin", "gpu_slurm_state": "planned"}
    inventory = {"all": {"hosts": {"bad": {**bad.variables, **required, "gpu_layout_nvml_source": "none"}}}}
    done = play(tmp_path, playbook, inventory, "--check", ANSIBLE_INJECT_FACT_VARS="True")
    assert done.returncode != 0 and not bad.asked.exists()
    assert "inject_facts_as_vars = False" in said(done) and "Nothing was changed." in said(done), said(done)


def audited(tmp_path, answers: dict, playbook="audit", **variables) -> subprocess.CompletedProcess:
    hosts = {name: HostileHost(tmp_path / name, answer).variables for name, answer in answers.items()}
    variables["gpu_%s_dir" % playbook] = str(tmp_path / "report")
    inventory = {"gpu_hosts": {"hosts": hosts}, "all": {"vars": variables}}
    return play(tmp_path, ROOT / "playbooks" / (playbook + ".yml"), inventory)


def test_hostile_host_does_not_remove_others_from_the_audit(tmp_path):
    deep = "[" * 900 + "]" * 900
    traversal = state(gpu("x", 0, "H100-80GB"))
    traversal["gpus"][0]["uuid"] = "GPU-../../" + WORDS
    huge = state(gpu("x", 0, "H100-80GB", "train.service"))
    huge["gpus"][0]["holders"] *= 3000
    answers = {
        "good": state(gpu("good", 0, "H100-80GB", "train.service")),
        "crowd": huge,
        "deep": '{"gpus": %s}' % deep,
        "nothing": {"gpus": None},
        "path": traversal,
        "words": state(gpu("words", 0, "H100-80GB", WORDS)),
    }
    done = audited(tmp_path, answers)
    assert done.returncode == 0, said(done)
    report = json.loads((tmp_path / "report/audit.json").read_text())
    assert {"good", "crowd", "words"} <= set(report["sources"]["hosts_answered"])
    missing = " ".join(report["sources"]["missing"])
    assert 'path: gpus[0].uuid: the host sent "GPU-../../{{ lookup' in missing
    assert all(line.isprintable() for line in report["sources"]["missing"])
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "report").iterdir()}
    assert max(sizes.values()) < 500_000, sizes
    page = (tmp_path / "report/audit.html").read_text()
    assert "<script" not in page and "\x1b" not in page and "\u202e" not in page
    assert not list(tmp_path.rglob("PWNED")) and not (ROOT / "PWNED").exists()


def test_texts_about_stopped_services_are_one_log_line(tmp_path):
    """Log hostile texts as one line.

    The log is on the controller, so a host must neither choose its path nor fill the disk.
    """
    answer = state(gpu("bad", 0, "H100-80GB", "idle.service"))
    answer["stopped"] = [{"kind": "unit", "name": WORDS, "gpus": [], "holders": ["x" * 2000] * 1000}] * 10
    answer["noticed"] = answer["spared"] = []
    answer["ansible_facts"] = facts(tmp_path)
    bad = HostileHost(tmp_path / "bad", answer)
    # Run only the play that reclaims. A variable lists the workloads, as an audit would.
    playbook = tmp_path / "reclaim.yml"
    import yaml

    plays = yaml.safe_load((ROOT / "playbooks/rightsize.yml").read_text())
    playbook.write_text(yaml.safe_dump(plays[-1:]))
    listed = [
        {"host": "bad", "kind": "unit", "name": "idle.service", "runtime": "", "gpus": ["GPU-bad-0"], "spared": ""}
    ]
    hosts = localhost(tmp_path)
    hosts["localhost"].update(
        gpu_rightsize_reclaim="act",
        gpu_rightsize_result={"reclaim": listed, "reclaim_grace_seconds": 1},
        gpu_rightsize_tell={"notice_seconds": 60, "host_ways": [], "tells": False},
    )
    inventory = {
        "gpu_hosts": {"hosts": {"bad": {**bad.variables, "gpu_rightsize_dir": str(tmp_path)}}},
        "all": {"hosts": hosts},
    }
    done = play(tmp_path, playbook, inventory)
    assert done.returncode == 0, said(done)
    assert not (tmp_path / "stolen.log").exists()
    (line,) = (tmp_path / "reclaim.log").read_text().splitlines()
    assert line.isascii() and len(line) < 6_000_000
    assert json.loads(line)["stopped"][0]["name"].startswith("{{ lookup('pipe'")


# --- values that only the controller decides ------------------------------------------------------------------------

#: Values that only the controller may set, each with another path.
JUDGED = {
    "msg": "all is well",
    "accepted": True,
    "failures": [],
    "differences": [],
    "summary": {"passed": 1},
    "paths": ["/etc/STOLEN"],
    "path": "/etc/STOLEN",
    "diff": {"before": "", "after": "STOLEN"},
    "ansible_facts": {"gpu_accept_result": {"accepted": True}},
}
JUDGING = {
    "its answer is a judgement": {},
    "it also says that it failed": {"failed": True, "msg": "x\x1b[2J"},
    "it also says that it cannot be reached": {"unreachable": True, "msg": "x"},
    "its reading is none": {"reading": None, "gpu_layout": None},
    "its reading is odd": {"reading": {"accepted": True}, "gpu_layout": {"accepted": True}},
}


@pytest.mark.parametrize("playbook", ["accept", "check_gpu", "export"])
@pytest.mark.parametrize("more", JUDGING.values(), ids=JUDGING)
def test_host_can_neither_accept_itself_nor_name_files(tmp_path, playbook, more):
    bad = HostileHost(tmp_path / "bad", {"changed": False, **JUDGED, **more})
    folder = tmp_path / "out"
    folder.mkdir()
    # This file is from an earlier run that accepted the host.
    (folder / "accepted").write_text("bad\n")
    variable = {"accept": "gpu_accept_dir", "check_gpu": "gpu_check_dir", "export": "gpu_export_dir"}[playbook]
    inventory = {"gpu_hosts": {"hosts": {"bad": bad.variables}, "vars": {variable: str(folder)}}}
    done = play(tmp_path, ROOT / "playbooks" / (playbook + ".yml"), inventory, "--diff")
    assert bad.asked.exists() and done.returncode != 0, said(done)
    assert "STOLEN" not in said(done) and "bad: accepted" not in said(done), said(done)
    assert "\x1b" not in done.stdout + done.stderr
    # The list of accepted hosts is empty, and no report or layout was written.
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["accepted"]
    assert playbook != "accept" or (folder / "accepted").read_text() == ""


def test_layout_result_keeps_only_documented_keys():
    answer = {**layout_result(WORDS), **JUDGED, "msg": "one\ntwo\x1b[2J", "failed": "yes", "warnings": "x"}
    kept = host_results.layout_result(answer)
    assert not {"accepted", "ansible_facts", "paths", "path", "stdout", "rc", "warnings"} & set(kept)
    assert kept["failed"] is True and kept["msg"] == "one\ntwo\\x1b[2J"
    assert all(line.isprintable() for line in kept["plan"])
    assert host_results.layout_result({"msg": "x" * 10_000_000})["msg"] == "x" * 997 + "..."


#: A task whose result the host chooses, and what the run does with it.
LAYOUT = """
- hosts: all
  gather_facts: false
  tasks:
    - openfleet.gpu.layout: {layout: [{gpus: all, sharing: shared}]}
      register: told
      ignore_errors: true
    - ansible.builtin.debug: {msg: "at fault: {{ told.host_fault | default('not said') }}"}
"""


@pytest.mark.parametrize("fault", [True, False])
def test_layout_result_keeps_warnings_and_host_fault(tmp_path, fault):
    """Keep the warnings and host_fault.

    Operators need the warnings. With host_fault, a run continues without the host.
    """
    failed = {"failed": True, "msg": "gpu 3 is lost", "host_fault": True} if fault else {}
    warning = "the card is hot\x1b[2J"
    if tuple(map(int, ansible_version.split(".")[:2])) >= (2, 19):
        # Since that version, a module's warn() sends warnings in this format.
        warning = {"__ansible_type": "WarningSummary", "event": {"__ansible_type": "Event", "msg": warning}}
    bad = HostileHost(tmp_path / "bad", {**layout_result("x"), **failed, "warnings": [warning]})
    playbook = tmp_path / "layout.yml"
    playbook.write_text(LAYOUT)
    done = play(tmp_path, playbook, {"all": {"hosts": {"bad": bad.variables}}})
    assert bad.asked.exists() and done.returncode == 0, said(done)
    assert "[WARNING]: the card is hot" in said(done) and "\x1b" not in done.stdout + done.stderr
    assert "at fault: %s" % (True if fault else "not said") in said(done)


# --- metrics of its exporter ----------------------------------------------------------------------------------------


def test_exporter_labels_are_short_lines():
    hostile = {"host": "bad", "model": WORDS, "gpu_uuid": "x" * 1_000_000}
    answer = {"status": "success", "data": {"resultType": "vector", "result": [{"metric": hostile, "value": [0, "1"]}]}}
    answer["warnings"] = [WORDS] * 10_000

    class Server(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            # Read the whole request. Otherwise the connection is reset, and the response may be lost.
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        said_by_it = Prometheus(Access("http://127.0.0.1:%d" % server.server_port)).query("gpu:info")
        thread.join()
    (sample,) = said_by_it.samples
    for text in (*sample.labels.values(), *said_by_it.warnings):
        assert text.isprintable() and len(text) <= 1000
    assert len(said_by_it.warnings) == 20
