# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run site.yml with the real ansible-playbook, on hosts that are local folders."""

from __future__ import annotations

import json
import os
import re
import stat
import sys

import pytest
from ansible.release import __version__ as ansible_version

from tests.integration.simulated_fleet import Fleet
from tests.integration.warm_ansible import interpreter
from tests.thorough import THOROUGH

LAYOUT = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb", "count": 2}]}]


@pytest.fixture
def fleet(host, library, tmp_path):
    return Fleet(tmp_path, library, ["one", "two", "three"])


@pytest.fixture
def pair(host, library, tmp_path):
    return Fleet(tmp_path, library, ["one", "two"])


def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def waves_of(run):
    return run.stdout.count("PLAY [Apply (in waves, a canary first)]")


@pytest.mark.core
def test_site_applies_reports_and_is_idempotent(pair, tmp_path, monkeypatch):
    # As in inventories/minimal/ansible.cfg.
    monkeypatch.setenv("ANSIBLE_DISPLAY_SKIPPED_HOSTS", "false")
    report = tmp_path / "reports" / "site"
    former = os.umask(0)
    try:
        first = pair.play(dict.fromkeys(pair.hosts, LAYOUT), "-e", f"gpu_report_dir={report}", waves=[2])
    finally:
        os.umask(former)
    assert first.returncode == 0, first.stdout + first.stderr
    assert waves_of(first) == 1
    # Checks that pass print nothing.
    assert len(re.findall(r"^(?:PLAY|TASK) \[", first.stdout, flags=re.MULTILINE)) < 20
    assert all(seen == [("3g.40gb", 0), ("3g.40gb", 4)] for seen in pair.seen().values())
    for host in pair.hosts.values():
        assert json.loads((host.folder / "root/etc/openfleet-gpu/layout.json").read_text()) == LAYOUT
        assert (host.folder / "root/etc/systemd/system/gpu-layout.service").exists()
    written = json.loads((report / "report.json").read_text())
    assert written["totals"]["create"] == 4
    assert written["totals"]["hosts_changed"] == 2
    assert "asked    mig: 2x 3g.40gb" in (report / "report.txt").read_text()
    assert (report / "report.html").read_text().count("grid-row: 1; grid-column: ") == 4
    # The report contains users and their command lines, so other users must not read it.
    private = {"site": 0o750, "report.txt": 0o640, "report.json": 0o640, "report.html": 0o640}
    assert modes(report.parent) == private
    for file in report.iterdir():
        file.chmod(0o644)
    second = pair.play(dict.fromkeys(pair.hosts, LAYOUT), "-e", f"gpu_report_dir={report}", waves=[1])
    assert second.returncode == 0, second.stdout + second.stderr
    assert waves_of(second) == 2
    assert second.stdout.count("changed=0") == 2
    assert modes(report.parent) == private
    assert "0 created, 0 destroyed, 4 kept; 0 GPUs changed; 0 of 2 hosts changed" in " ".join(second.stdout.split())
    # The inventory needs no group for monitoring.
    assert "PLAY [Set up the monitoring and the audit timer]" in second.stdout
    assert "WARNING" not in second.stdout + second.stderr


def test_gpu_without_an_entry_is_named_until_released(host, library, tmp_path):
    fleet, report = Fleet(tmp_path, library, ["one"]), tmp_path / "report"
    options = ("-e", f"gpu_report_dir={report}")
    assert fleet.play({"one": LAYOUT}).returncode == 0
    kept = fleet.play({"one": []}, *options)
    assert kept.returncode == 0, kept.stdout + kept.stderr
    words = "unmanaged, without an entry: keeps mig (3g.40gb@0, 3g.40gb@4)"
    assert words in kept.stdout.split("Print the plan of each host")[1].split("TASK [")[0]
    assert words in (report / "report.txt").read_text() and words in (report / "report.html").read_text()
    assert "1 GPU unmanaged (gpu_layout_unnamed)" in kept.stdout.split("GPU FLEET")[1]
    unit = (fleet.hosts["one"].folder / "root/etc/systemd/system/gpu-layout.service").read_text()
    assert " --unnamed keep " in unit
    released = fleet.play({"one": []}, *options, "-e", "gpu_layout_unnamed=release")
    assert released.returncode == 0, released.stdout + released.stderr
    assert "released, without an entry" in released.stdout and list(fleet.seen().values()) == [[]]
    assert "unmanaged" not in (report / "report.txt").read_text() + released.stdout.split("GPU FLEET")[1]


def test_typo_of_the_last_host_stops_the_run_before_any_change(fleet):
    typo = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.45gb"}]}]
    run = fleet.play({"one": LAYOUT, "two": LAYOUT, "three": typo})
    assert run.returncode != 0
    said = " ".join((run.stdout + run.stderr).split())
    # The message has the host, the entry, the GPU with its UUID, the mistake, and the value that the user probably
    # meant.
    assert re.search(
        r"three: gpu_layout\[0\] on gpu 0 \(NVIDIA H100 80GB HBM3, GPU-[0-9a-f-]{36}\): there is no profile 3g\.45gb\. "
        r"Did you mean 3g\.40gb\? This GPU has: ",
        said,
    )
    assert "fatal: [three]" in said and "failed: gpu_layout[0]" not in said
    # Expect the error twice: at the failing task, and in the closing summary. ansible-core 2.19 and later print the
    # first one both as an error and as a result.
    by_core = said.count("[ERROR]: Task failed: Action failed: three: gpu_layout[0] on gpu 0 (")
    assert said.count("there is no profile 3g.45gb") - by_core == 2
    assert "Failed: three: gpu_layout[0] on gpu 0 (" in said.partition("GPU FLEET")[2]
    assert fleet.seen() == {"one": [], "two": [], "three": []}


@pytest.mark.core
def test_wrong_variables_of_the_last_host_stop_the_run_before_any_change(fleet):
    wrong = {"gpu_layout_lock_timeout": "soon", "gpu_layout_on_bsuy": "wait", "container_toolkit_restart": "mabye"}
    fleet.more["three"] = {**wrong, "gpu_layuot_lost": "skip", "gpu_layouts": []}
    run = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), waves=[0, "many"])
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode != 0
    assert "three: gpu_layout_lock_timeout: expected a whole number" in said
    assert (
        "three: gpu_layout_on_bsuy: unknown variable. Did you mean gpu_layout_on_busy? If it is yours, list it in"
        in said
    )
    assert 'three: container_toolkit_restart: unknown value "mabye"' in said
    assert "three: gpu_layuot_lost: unknown variable. Did you mean gpu_layout_lost? If it is yours, list it in" in said
    # `gpu_layouts` may be the inventory's own variable, so the message is only a warning.
    assert "three: gpu_layouts: unknown variable, ignored. Did you mean gpu_layout?" in said
    # The group sets this variable, so all its hosts have the mistake.
    assert "one, three, two: gpu_site_waves[0]: a wave of 0 hosts" in said
    assert 'one, three, two: gpu_site_waves[1]: invalid wave size "many"' in said
    assert "Traceback" not in said
    # The run stopped before it read any host.
    assert "TASK [openfleet.gpu.gpu_layout" not in said
    assert fleet.seen() == {"one": [], "two": [], "three": []}


def test_dry_run_counts_changes_of_hosts_without_a_driver(pair, tmp_path):
    python = str(interpreter(tmp_path / "python3"))
    pair.more = {"one": {"ansible_python_interpreter": python, "gpu_layout_expected_gpus": ["H100-80GB"]}}
    report = tmp_path / "report"
    run = pair.play(dict.fromkeys(pair.hosts, LAYOUT), "--check", "-e", f"gpu_report_dir={report}", waves=[2])
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode == 0, said
    assert (
        "one: - (no NVIDIA driver yet; checked against the model catalogue) - 'gpu 0: enable MIG mode, create" in said
    )
    totals = json.loads((report / "report.json").read_text())["totals"]
    assert (totals["create"], totals["gpus"], totals["hosts_changed"]) == (4, 2, 2)
    assert "2 of 2 hosts would change; 1 without a driver yet, planned from the model catalogue" in said
    assert (
        "Plan: 4 to create, 0 to destroy, 0 kept; 2 GPUs to change on 2 of 2 hosts "
        "(no driver yet, planned from the model catalogue: one)" in said
    )


@pytest.mark.core
def test_dry_run_shows_the_steps_and_changes_nothing(fleet):
    fleet.hosts["three"].module("mig", layout=LAYOUT)
    there = {"one": [], "two": [], "three": [("3g.40gb", 0), ("3g.40gb", 4)]}
    run = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), "--check", "--diff")
    assert run.returncode == 0, run.stdout + run.stderr
    # Without waves in the inventory, there are three waves: one host, a quarter of the hosts, and the rest.
    assert waves_of(run) == 3
    planning, applying = run.stdout.split("PLAY [Apply (in waves, a canary first)]", 1)
    steps = r"gpu 0 \(GPU-[0-9a-f]{8}\): enable MIG mode, create 3g\.40gb@0, create 3g\.40gb@4"
    # YAML folds long lines and sorts keys.
    plans = " ".join(planning.split("PLAY [Decide whether to continue]", 1)[1].split())
    assert re.search("one: - '?" + steps, plans) and re.search("two: - '?" + steps, plans), plans
    assert "nothing to do: three " in plans and plans.count("enable MIG mode") == 2
    # The diff shows the current and the desired state, and does not repeat the steps.
    assert run.stdout.count("create 3g.40gb@4") == 2
    assert "+gpu 0: MIG on: 3g.40gb@0, 3g.40gb@4" in applying
    assert applying.count("would change  from MIG off, compute mode default") == 2
    assert "would change  no" in applying and "changed  " not in applying
    # The run prints the summary once. ansible.cfg enables a callback, and the callback next to the playbook does not
    # print it again.
    assert run.stdout.count("GPU FLEET") == 1
    assert fleet.seen() == there


@pytest.mark.core
def test_summary_needs_no_configuration(host, library, tmp_path, monkeypatch):
    """Run an installed collection's playbook by name, without an ansible.cfg."""
    monkeypatch.setenv("ANSIBLE_INJECT_FACT_VARS", "False")
    fleet = Fleet(tmp_path, library, ["one"])
    fleet.config = None
    run = fleet.play({"one": LAYOUT}, "--check", playbook="openfleet.gpu.site")
    assert run.returncode == 0, run.stdout + run.stderr
    (summary,) = run.stdout.split("GPU FLEET")[1:]
    assert "Plan: 2 to create, 0 to destroy, 0 kept; 1 GPU to change on 1 of 1 host" in summary
    assert "callback" not in run.stdout + run.stderr


@pytest.mark.parametrize(
    ("playbook", "group"),
    [
        ("site.yml", "gpu_host"),
        ("site.yml", "gpu_hosts"),
        ("playbooks/reset.yml", "gpu_host"),
        *(
            pytest.param("playbooks/%s.yml" % name, "gpu_host", marks=pytest.mark.thorough)
            for name in ("export", "check_gpu", "accept", "rightsize")
        ),
    ],
)
def test_inventory_without_gpu_hosts_fails(fleet, tmp_path, playbook, group):
    inventory = tmp_path / "empty.yml"
    inventory.write_text(json.dumps({group: {"hosts": {"one": {}} if group != "gpu_hosts" else {}}}))
    run = fleet.run(playbook, inventory)
    assert run.returncode != 0
    said = " ".join((run.stdout + run.stderr).split())
    assert "The group gpu_hosts has no hosts" in said
    assert ("The inventory has the group gpu_host: did you mean gpu_hosts?" in said) == (group == "gpu_host")
    # Only the play on localhost has a host.
    assert said.split("PLAY RECAP", 1)[1].split()[1:2] == ["localhost"]


@pytest.mark.parametrize(
    ("group", "task"),
    [
        ("gpu_monitoring", "Install or remove the monitoring"),
        pytest.param("gpu_audit", "Install or remove the audit timer", marks=pytest.mark.thorough),
    ],
)
def test_inventory_of_only_monitoring_or_audit_hosts_succeeds(fleet, tmp_path, group, task):
    watcher = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        f"{group}_state": "absent",
        "gpu_audit_project_dir": "/srv/project",
    }
    inventory = tmp_path / "watcher.yml"
    inventory.write_text(json.dumps({group: {"hosts": {"watcher": watcher}}}))
    run = fleet.run("site.yml", inventory, "--check")
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"TASK [{task}]" in run.stdout


def test_host_without_a_plan_stops_the_run_unless_tolerated(fleet, tmp_path):
    """Stop the run, or continue if the user tolerates a lost host.

    One host is unreachable, and another host's driver fails.
    """
    fleet.more["one"] = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    fleet.hosts["two"].gpusim("fail", "nvmlDeviceGetMemoryInfo", "--code", "UNKNOWN")
    layouts = dict.fromkeys(fleet.hosts, LAYOUT)
    refused = fleet.play(layouts, waves=[1])
    said = " ".join((refused.stdout + refused.stderr).split())
    assert refused.returncode != 0
    assert (
        said.count("No plan for one (could not be reached), two (its error is above). Fix") >= 1
        and "or allow 2 hosts without a plan (gpu_site_tolerate: 2). Nothing was changed." in said
    )
    assert "Fix these hosts, exclude them (--limit '!one:!two')" in said
    # The run prints the third host's plan, and that host has not failed.
    assert re.search(r"three:\s+- '?gpu 0 \(GPU-[0-9a-f]{8}\): enable MIG mode, create 3g\.40gb@0", refused.stdout)
    assert "fatal: [three]" not in refused.stdout
    assert fleet.seen() == {"one": [], "two": [], "three": []}
    assert "Apply gpu_layout" not in refused.stdout and "Apply the layout" not in refused.stdout
    fleet.hosts["two"].gpusim("fail", "nvmlDeviceGetMemoryInfo", "--code", "UNKNOWN")
    report = tmp_path / "report"
    done = fleet.play(layouts, "-e", "gpu_site_tolerate=70%", "-e", f"gpu_report_dir={report}", waves=[1])
    assert fleet.seen() == {"one": [], "two": [], "three": [("3g.40gb", 0), ("3g.40gb", 4)]}
    # The only remaining host is the canary. The exit status shows that hosts are missing.
    assert waves_of(done) == 1 and done.returncode != 0
    written = json.loads((report / "report.json").read_text())
    assert written["totals"]["hosts_left_out"] == 2 and written["totals"]["hosts_changed"] == 1
    notes = {host["name"]: host["note"] for host in written["hosts"]}
    assert notes["one"] == "left out: could not be reached"
    assert notes["two"].startswith("left out: gpu_layout[0].gpus[0]: gpu 0 (GPU-")
    assert "2 left out" in " ".join(done.stdout.split())


@pytest.mark.thorough
def test_tolerated_percentage_refers_to_the_limited_hosts(fleet):
    fleet.more["one"] = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    arguments = (dict.fromkeys(fleet.hosts, LAYOUT), "--check", "-e", "gpu_site_tolerate=34%")
    of_two = fleet.play(*arguments, "--limit", "one:two")
    assert "allow 1 host without a plan (gpu_site_tolerate: 1)" in " ".join(of_two.stdout.split())
    assert "left out" not in of_two.stdout
    of_three = fleet.play(*arguments, waves=[2])
    assert "1 left out" in " ".join(of_three.stdout.split())


@pytest.mark.thorough
def test_damaged_file_or_missing_password_can_be_tolerated(fleet, tmp_path):
    tenant = tmp_path / "tenants/etc/openfleet-gpu/vgpu/a/tenant.json"
    tenant.parent.mkdir(parents=True)
    tenant.write_text('{"schema": 1, "na')
    python = fleet.interpreter("one")
    damaged = python.with_name("python3-with-tenants")
    exported = "export OPENFLEET_VGPU_ROOT=%s" % (tmp_path / "tenants")
    damaged.write_text(python.read_text().replace("exec ", exported + "\nexec ", 1))
    damaged.chmod(0o755)
    # Prints sudo's message on a host, as Ansible's own connection returns it.
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    ssh.chmod(0o755)
    fleet.more = {
        "one": {"ansible_python_interpreter": str(damaged)},
        "two": {
            "ansible_connection": "ssh",
            "ansible_host": "127.0.0.1",
            "ansible_ssh_executable": str(ssh),
            "ansible_become": True,
        },
    }
    layouts = dict.fromkeys(fleet.hosts, LAYOUT)
    refused = fleet.play(layouts, "-e", "gpu_site_tolerate=1", waves=[1])
    said = " ".join((refused.stdout + refused.stderr).split())
    assert refused.returncode != 0 and "Apply the layout" not in said
    assert re.search(r"one: \S*/a/tenant\.json: the file is damaged\b", said), said
    assert re.search(r"No plan for one \(its error is above\), two \(.*gpu_site_tolerate: 2", said), said
    done = fleet.play(layouts, "-e", "gpu_site_tolerate=2", waves=[1])
    assert fleet.seen() == {"one": [], "two": [], "three": [("3g.40gb", 0), ("3g.40gb", 4)]}, done.stdout
    assert done.returncode != 0 and "2 left out" in " ".join(done.stdout.split())


def test_unreachable_hosts_end_the_run_with_names_and_a_fix(fleet, tmp_path):
    # The stand-in for ssh reads its input before it exits. Otherwise Ansible reports a broken pipe in place of ssh's
    # own error.
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\n[ -t 0 ] || cat >/dev/null\nexec ssh "$@" </dev/null\n')
    ssh.chmod(0o755)
    gone = {
        "ansible_connection": "ssh",
        "ansible_host": "127.0.0.1",
        "ansible_port": 1,
        "ansible_ssh_executable": str(ssh),
    }
    fleet.more = dict.fromkeys(fleet.hosts, gone)
    run = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), "-e", "gpu_site_tolerate=100%")
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode != 0
    reasons = ", ".join("%s (could not be reached)" % name for name in sorted(fleet.hosts))
    assert "No plan for any host: %s. Fix these hosts and run again." % reasons in said
    # The summary has SSH's own error, once for all hosts.
    summary = said.split("GPU FLEET", 1)[1]
    named = ", ".join(sorted(fleet.hosts))
    assert re.search(rf"Failed: {named}: it could not be reached: \S.*? port 1\b", summary), summary
    assert summary.count("Failed: ") == 1, summary
    # After the message, the output has only the recap.
    tasks, recap = said.split("PLAY RECAP", 1)
    assert tasks.rindex("no plan (could not be reached)") < tasks.index("No plan for any host")
    assert recap.count("failed=1") == 3
    assert "ansible -i INVENTORY gpu_hosts -m ansible.builtin.ping. Nothing was changed." in said
    assert "PLAY [Apply" not in said


@pytest.mark.thorough
def test_unreachable_host_is_not_in_a_saved_plan(fleet, tmp_path):
    fleet.more["one"] = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    layouts = dict.fromkeys(fleet.hosts, LAYOUT)
    file = tmp_path / "plan.json"
    refused = fleet.play(layouts, "--check", "-e", f"gpu_layout_plan_out={file}")
    assert refused.returncode != 0 and not file.exists()
    assert "No plan for one (could not be reached)" in " ".join(refused.stdout.split())
    fleet.play(layouts, "--check", "-e", f"gpu_layout_plan_out={file}", "-e", "gpu_site_tolerate=1")
    assert sorted(json.loads(file.read_text())["hosts"]) == ["three", "two"]


@pytest.mark.parametrize("with_file", [True, False])
def test_injected_facts_are_refused_with_the_name_of_the_setting(fleet, tmp_path, monkeypatch, with_file):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ANSIBLE_INJECT_FACT_VARS", raising=False)
    fleet.config = None
    file = tmp_path / "none.cfg"
    if with_file:
        file.write_text("[defaults]\n")
    run = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), "--check")
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode != 0
    named = f"Set inject_facts_as_vars = False under [defaults] of {file}, the ansible.cfg in use, or set"
    written = f"No ansible.cfg is in use: write one in {tmp_path}, the directory of this run, with the lines"
    assert (named in said) == with_file and (written in said) == (not with_file)
    # The error lists the unsafe option last.
    assert 0 < said.index("ANSIBLE_INJECT_FACT_VARS=False") < said.index("OPENFLEET_GPU_TRUST_FACTS=1")
    assert "TASK [openfleet.gpu.gpu_layout" not in said


def test_monitoring_error_stops_the_run_despite_a_tolerated_loss(fleet):
    """Check that one of the playbook's tasks stops the run after a monitoring error.

    ansible-core itself does not end a playbook for an error if one of the play's hosts has failed before.
    """
    fleet.more["one"] = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    watchers = {"one": {}, "right": {"gpu_monitoring_state": "absent"}, "wrong": {"gpu_monitoring_state": "gone"}}
    fleet.groups["gpu_monitoring"] = {"hosts": watchers}
    run = fleet.play(dict.fromkeys(fleet.hosts, LAYOUT), "-e", "gpu_site_tolerate=1", waves=[1])
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode != 0 and "gpu_monitoring_state" in said
    assert (
        "Apply the layout" not in said
        and "Install or remove the monitoring" not in said
        and "Nothing was changed" in said
    )
    assert fleet.seen() == {"one": [], "two": [], "three": []}


def test_wrong_layout_is_not_tolerated(fleet):
    typo = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.45gb"}]}]
    run = fleet.play({"one": LAYOUT, "two": LAYOUT, "three": typo}, "-e", "gpu_site_tolerate=2")
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode != 0
    assert (
        "No plan for three (its error is above). Correct the errors above and run again. gpu_site_tolerate does not"
        in said
    )
    assert fleet.seen() == {"one": [], "two": [], "three": []}


@pytest.mark.thorough
@pytest.mark.core
def test_before_ansible_core_2_19_hosts_must_be_trusted(fleet, monkeypatch):
    old = tuple(map(int, ansible_version.split(".")[:2])) < (2, 19)
    monkeypatch.delenv("OPENFLEET_GPU_TRUST_HOSTS", raising=False)
    run = fleet.play({"one": LAYOUT}, "--check")
    assert (run.returncode != 0) == old
    assert ("set OPENFLEET_GPU_TRUST_HOSTS=1" in " ".join((run.stdout + run.stderr).split())) == old


def test_host_without_a_layout_is_named(fleet):
    fleet.without_layout = {"two", "three"}
    fleet.more["three"] = {"gpu_layouts": LAYOUT}
    run = fleet.play({"one": None, "two": None, "three": None})
    assert run.returncode != 0
    said = " ".join((run.stdout + run.stderr).split())
    write = "rite `gpu_layout: []` to keep the host's GPUs as they are"
    assert f"one: gpu_layout: the value is empty (null). W{write}" in said
    assert f"two: gpu_layout: the host has no gpu_layout. W{write}" in said
    assert (
        "three: gpu_layout: the host has no gpu_layout. It has gpu_layouts: did you mean gpu_layout? "
        f"Otherwise w{write}" in said
    )
    # The variable is an error, and the run does not report it again as a warning.
    assert "gpu_layouts: unknown variable" not in said
    assert "Jinja" not in said and "is undefined" not in said
    assert fleet.seen() == {"one": [], "two": [], "three": []}


@pytest.fixture
def sick(fleet):
    """Give the second host two GPUs.

    The second of them is lost.
    """
    host = fleet.hosts["two"].create([{"model": "H100-80GB", "count": 2}])
    host.gpusim("lose", "1")
    return fleet


HALVES = [("3g.40gb", 0), ("3g.40gb", 4)]


def test_lost_gpu_without_an_entry_is_a_warning(sick):
    run = sick.play({"two": LAYOUT}, waves=[1])
    said = " ".join((run.stdout + run.stderr).split())
    assert run.returncode == 0, said
    assert "gpu 1 is lost: the layout does not name it" in said
    assert sick.hosts["two"].module("gpu_info")["gpus"][0]["mig"]["enabled"]


def test_lost_gpu_with_an_entry_can_be_tolerated_or_skipped(sick):
    layouts = {"one": LAYOUT, "two": [dict(LAYOUT[0], gpus=[0, 1])]}
    refused = sick.play(layouts, waves=[1])
    said = " ".join((refused.stdout + refused.stderr).split())
    assert refused.returncode != 0
    assert "two: gpu_layout[0].gpus[1]: gpu 1 is lost: " in said and "gpu_layout_lost: skip" in said
    assert "No plan for two (its error is above). Fix this host" in said
    assert sick.hosts["one"].seen()[0] == []
    # Another test checks that other hosts get their layouts if the user tolerates a host without a plan.
    if THOROUGH:
        tolerated = sick.play(layouts, "-e", "gpu_site_tolerate=1", waves=[1])
        said = " ".join((tolerated.stdout + tolerated.stderr).split())
        assert tolerated.returncode != 0 and "1 left out" in said
        assert sick.hosts["one"].seen()[0] == HALVES
    skipped = sick.play(layouts, "-e", "gpu_layout_lost=skip", waves=[1])
    said = " ".join((skipped.stdout + skipped.stderr).split())
    assert skipped.returncode == 0, said
    assert "gpu_layout[0] is applied to its other GPUs" in said
    # The wave's health check passed.
    assert "TASK [openfleet.gpu.gpu_layout : " in skipped.stdout and "failed=0" in said
    gpus = sick.hosts["two"].module("gpu_info")["gpus"]
    assert [(gpu["index"], len(gpu["mig"]["instances"])) for gpu in gpus] == [(0, 2)]
