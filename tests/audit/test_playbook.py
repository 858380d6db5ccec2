# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run playbooks/audit.yml with the real ansible-playbook and a real Prometheus.

One host has simulated GPUs, and another host is unreachable.
"""

from __future__ import annotations

import contextlib
import csv
import http.server
import json
import os
import subprocess
import threading
import time
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.audit.fleet_history import AT_REST, Device, prometheus, steady
from tests.lab import warm_playbook

ROOT = Path(__file__).parents[2]
from tests.integration.simulated_host import SimulatedHost
from tests.integration.warm_ansible import interpreter

SCHEMA = jsonschema.Draft202012Validator(json.loads((ROOT / "docs" / "audit.schema.json").read_text()))
HOURS = 50
FILES = ["audit-hours.csv", "audit-owners.csv", "audit.csv", "audit.html", "audit.json", "audit.prom"]
HELD = {("gpu:held", "kind", "container"): steady(1)}
CLEAR = dict.fromkeys(HELD, steady(0))
NOBODY = {"gpu:processes": steady(0), "gpu:processes:max5m": steady(0)}
#: No server listens at this address.
NOWHERE = "http://127.0.0.1:9"
SECRET = "of-the-vault"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("play")


@pytest.fixture(scope="module")
def host(folder):
    """Return a host with two GPUs."""
    made = SimulatedHost.build(folder / "host").create([{"model": "H100-80GB", "count": 2}])
    names = ("PATH", "LD_LIBRARY_PATH", "GPUSIM_STATE", "GPUSIM_LIBRARY", "PYTHONPATH")
    interpreter(made.bin / "python3", {name: made.environment[name] for name in names}, made.python)
    return made


@pytest.fixture(scope="module")
def inventory(folder, host):
    """Return an inventory of two hosts.

    `here` responds. `far` is at a port without a listener.
    """
    here = {
        "ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": str(host.bin / "python3"),
    }  # fmt: skip
    far = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9, "ansible_become": False}
    watching = {"gpu_monitoring_prices": [{"model": "H100*", "price": 2.0}], "gpu_monitoring_currency": "EUR"}
    path = folder / "inventory.yml"
    path.write_text(
        yaml.safe_dump(
            {
                "gpu_hosts": {"hosts": {"here": here, "far": far}},
                "gpu_monitoring": {"hosts": {"watching": watching}},
            },
            sort_keys=False,
        )
    )
    return path


@pytest.fixture(scope="module")
def server(folder, host):
    """Serve a history of two days.

    `here` was idle all the time, and so was one of the two GPUs of `far`.
    """
    first, second = [gpu["uuid"] for gpu in host.module("gpu_info")["gpus"]]
    history = [
        Device("here", 0, series=AT_REST, known_uuid=first),
        Device("here", 1, series={**AT_REST, **NOBODY, "gpu:held:avg5m": steady(0)}, labelled=CLEAR, known_uuid=second),
        Device("far", 0, series={**AT_REST, **NOBODY}, labelled=HELD),
        Device("far", 1, labelled=HELD),
    ]
    (folder / "prometheus").mkdir()
    with prometheus(history, HOURS, folder / "prometheus") as url:
        yield url


def ansible_playbook(folder, *arguments):
    environment = {
        **os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_CACHE_PLUGIN": "memory", "NO_COLOR": "1",
    }  # fmt: skip
    command = [*warm_playbook.COMMAND, *arguments]
    return subprocess.run(
        list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def play(folder, inventory):
    """Return a function that runs the playbook with variables.

    The function returns the completed process.
    """

    def run(*options, inventory=inventory, **settings):
        # The history has two days.
        short = {"idle_hours": 24, "new_holder_hours": 0}
        settings = {
            "window": "%dh" % (HOURS - 1),
            **settings,
            "thresholds": {**short, **settings.get("thresholds", {})},
        }
        variables = folder / "variables.json"
        variables.write_text(json.dumps({"gpu_audit_%s" % name: value for name, value in settings.items()}))
        return ansible_playbook(folder, "-i", inventory, *options, "playbooks/audit.yml", "-e", "@%s" % variables)

    return run


def said(done):
    """Return the output as one line, so that line breaks do not matter."""
    return " ".join((done.stdout + done.stderr).split())


def read(directory):
    data = json.loads((directory / "audit.json").read_text())
    SCHEMA.validate(data)
    return data


def words(data):
    return {
        "%s %s" % (found["holding"]["subject"]["host"], found["holding"]["subject"]["gpu_index"]): found["verdict"][
            "word"
        ]
        for found in data["findings"]
    }


def states(rows):
    return {
        (row["holding"]["subject"]["host"], row["holding"]["subject"]["gpu_index"], row["verdict"]["word"]): row[
            "state"
        ]
        for row in rows
    }


@contextlib.contextmanager
def client_on(host, gpu):
    """Run a process with a context on the host's GPU until the block ends."""
    process = host.popen(
        [str(host.bin / "gpusim"), "run", "--gpu", str(gpu), "--", "sh", "-c", "echo on; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "on\n"
        yield process
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(60)


@pytest.fixture(scope="module")
def twice(play, server, host, folder):
    """Run two audits into one directory, and return both runs with their data.

    Between the two audits, a process that holds a GPU ends.
    """
    out = folder / "twice"
    settings = {"prometheus": {"url": server}, "dir": str(out)}
    with client_on(host, 0):
        first = play(**settings)
        assert first.returncode == 0, said(first)
        data = read(out)
    second = play(**settings)
    assert second.returncode == 0, said(second)
    return first, data, second, read(out)


def test_hosts_and_history_together_though_one_host_cannot_be_reached(twice):
    done, data, _second, _its = twice
    assert words(data) == {"here 0": "idle", "here 1": "free", "far 0": "held_without_process", "far 1": "right"}
    assert data["sources"]["hosts_asked"] == ["far", "here"] and data["sources"]["hosts_answered"] == ["here"]
    assert any("1 of 2 hosts did not answer (far)" in text for text in data["sources"]["missing"])
    # The host names its GPU's holder. For the other GPU, the server only knows the number of processes.
    holders = {found["holding"]["subject"]["host"]: found["holding"]["holders"] for found in data["findings"]}
    assert [one["who"] for one in holders["far"]] == ["1"]
    (process,) = next(f for f in data["findings"] if f["verdict"]["word"] == "idle")["holding"]["holders"]
    assert process["kind"] == "process" and "cat" in process["who"]
    assert "did not answer (far)" in said(done) and "far: it could not be reached: " in said(done)


def test_prices_are_the_monitoring_host_s(twice):
    _first, data, _second, _its = twice
    assert data["currency"] == "EUR"
    assert {found["holding"]["price_per_hour"] for found in data["findings"]} == {2.0}
    # Three of four GPUs are idle all the time.
    assert data["summary"]["waste_per_month"] == pytest.approx(3 * 2.0 * 730.5)


def test_its_line_is_printed_and_nothing_counts_as_changed(twice):
    done = twice[0]
    line = "2 findings: 1 held without process, 1 idle; 2 new, 0 gone; without findings: 1 free, 1 right"
    line += "; reserved and unused: 2 GPUs (2,922 EUR/month); not assigned: 1 GPU (1,461 EUR/month)"
    assert line in said(done)
    assert "changed=0" in done.stdout and "changed=1" not in done.stdout


def test_the_second_one_says_what_is_still_there_and_what_is_gone(twice):
    _first, data, _second, later = twice
    assert set(states(data["findings"]).values()) == {"new"} and data["gone"] == []
    assert states(later["findings"]) == {
        ("here", "0", "free"): "new",
        ("here", "1", "free"): "still",
        ("far", "0", "held_without_process"): "still",
        ("far", "1", "right"): "still",
    }
    assert states(later["gone"]) == {("here", "0", "idle"): "gone"}
    since = {found["id"]: found["first_found_seconds"] for found in data["findings"]}
    kept = [found for found in later["findings"] if found["state"] == "still"]
    assert all(found["first_found_seconds"] == since[found["id"]] for found in kept)


def test_all_files_are_there_and_nothing_else(twice, folder):
    assert sorted(path.name for path in (folder / "twice").iterdir()) == FILES
    rows = list(csv.DictReader((folder / "twice" / "audit.csv").open(newline="")))
    assert len(rows) == 5 and {row["state"] for row in rows} == {"new", "still", "gone"}


def test_without_a_server_the_hosts_are_reported_and_nobody_is_blamed(play, folder):
    """Report the hosts without a server, and blame no holder.

    The report lists only hosts as missing that the audit asked.
    """
    done = play(dir=str(folder / "one"), hosts="here")
    assert done.returncode == 0, said(done)
    data = read(folder / "one")
    assert words(data) == {"here 0": "no_data", "here 1": "no_data"}
    assert any("No server is configured" in text for text in data["sources"]["missing"])
    assert data["sources"]["hosts_asked"] == ["here"] and "did not answer" not in " ".join(data["sources"]["missing"])


def test_a_server_that_is_down_leaves_the_hosts_and_is_said(play, folder):
    settings = {"url": NOWHERE, "user": "audit", "password": SECRET}
    done = play("-vvv", dir=str(folder / "down"), prometheus=settings)
    assert done.returncode == 0, said(done)
    assert words(read(folder / "down")) == {"here 0": "no_data", "here 1": "no_data"}
    assert "http://127.0.0.1:9: it could not be reached" in said(done)
    # Ansible does not print the password, not even with its highest verbosity.
    for text in (said(done), *(path.read_text() for path in (folder / "down").iterdir())):
        assert SECRET not in text


def test_with_neither_server_nor_hosts_it_fails_and_writes_nothing(play, folder):
    done = play(dir=str(folder / "nothing"), hosts="none", prometheus={"url": NOWHERE})
    assert done.returncode == 2
    assert "there is nothing to audit" in said(done) and "could not be reached" in said(done)
    assert not (folder / "nothing").exists()


class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def hook():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as listening:
        listening.seen = []
        threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True).start()
        yield listening
        listening.shutdown()


@pytest.fixture(scope="module")
def alone(play, server, folder):
    """Audit with only the server and an empty inventory, and return the report's data.

    The report is the first one in `kept`.
    """
    (folder / "empty.yml").write_text("all: {}\n")
    settings = {"dir": str(folder / "kept"), "keep": 2, "hosts": "none", "prometheus": {"url": server}}
    done = play(inventory=folder / "empty.yml", **settings)
    assert done.returncode == 0, said(done)
    return settings, read(folder / "kept" / "latest")


def test_the_server_alone_and_an_inventory_with_nothing(alone):
    _settings, data = alone
    assert words(data)["far 0"] == "held_without_process" and words(data)["here 0"] == "idle"
    assert any("No host was asked" in text for text in data["sources"]["missing"])


def test_it_fails_for_a_verdict_when_all_is_kept_and_told(play, alone, folder, hook):
    """Fail because of a verdict only after all reports are complete.

    The audit stores and sends all reports first. Each audit writes to its own directory.
    """
    settings, _data = alone
    before = (folder / "kept" / "latest").readlink()
    url = "http://127.0.0.1:%d/secret" % hook.server_address[1]
    done = play(**settings, notify=[{"url": url}], fail_on=["held_without_process", "unhealthy"])
    assert done.returncode == 2
    assert "Failed because of fail_on: 1 held_without_process." in said(done) and "was not sent" not in said(done)
    assert [seen["summary"]["words"]["held_without_process"] for seen in hook.seen] == [1]
    after = (folder / "kept" / "latest").readlink()
    assert sorted(path.name for path in (folder / "kept").iterdir()) == [
        str(before),
        str(after),
        "index.html",
        "latest",
    ]
    assert sorted(path.name for path in (folder / "kept" / "latest").iterdir()) == [*FILES, "summary.json"]
    data = read(folder / "kept" / "latest")
    assert data["summary"]["still"] == data["summary"]["findings"] == 4
    page = (folder / "kept" / "index.html").read_text()
    assert page.index("%s/audit.html" % after) < page.index("%s/audit.html" % before)


def test_who_does_not_listen_keeps_it_from_nobody_else(play, server, folder, hook):
    dead, url = "http://127.0.0.1:9/secret", "http://127.0.0.1:%d/secret" % hook.server_address[1]
    notify = [{"url": dead}, {"url": url}]
    done = play(dir=str(folder / "told"), hosts="none", prometheus={"url": server}, notify=notify, fail_on=["idle"])
    assert done.returncode == 2 and len(hook.seen) == 1
    assert "the notification was not sent" in said(done) and "secret" not in said(done)
    assert "Failed because of fail_on" in said(done)
    assert sorted(path.name for path in (folder / "told").iterdir()) == FILES


def test_a_dry_run_writes_and_tells_nothing(play, server, folder, hook):
    url = "http://127.0.0.1:%d/secret" % hook.server_address[1]
    settings = {"dir": str(folder / "dry"), "prometheus": {"url": server}, "notify": [{"url": url}]}
    done = play("--check", **settings, fail_on=["unanswered", "unhealthy"])
    # The audit reports the unreachable host like a real one.
    assert done.returncode == 2 and "Failed because of fail_on: 1 unanswered." in said(done), said(done)
    assert "1 finding: 1 held without process; " in said(done)
    assert not (folder / "dry").exists() and hook.seen == []


REFUSED = [
    ({"prometheus": {"adress": NOWHERE}}, "prometheus.adress: unknown key"),
    ({"keep": -1, "directory": "/nowhere"}, "keep: -1 is not a number of reports"),
    ({"window": "two weeks"}, "window: 'two weeks' is not a duration"),
    (
        {"prices": [{"model": "H100*"}]},
        'prices[0]: model or price is missing. Write it as {model: "H100*", price: 2.5}',
    ),
]


@pytest.fixture(scope="module")
def refused(folder):
    """Return the action's error for each of these settings, from one run."""
    tasks = [
        {"openfleet.gpu.audit": {"hosts": {}, "hosts_asked": [], **settings}, "ignore_errors": True}
        for settings, _message in REFUSED
    ]
    (folder / "refused.yml").write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    done = ansible_playbook(folder, folder / "refused.yml")
    assert done.returncode == 0 and done.stdout.count("...ignoring") == len(REFUSED), said(done)
    return said(done)


@pytest.mark.parametrize("message", [message for _settings, message in REFUSED])
def test_a_setting_that_cannot_be_meant_is_refused_with_its_place(refused, message):
    assert message in refused


def test_the_playbook_stops_at_a_setting_that_cannot_be_meant(play):
    settings, message = REFUSED[0]
    done = play(hosts="none", **settings)
    assert done.returncode == 2 and message in said(done)


def test_a_way_to_ask_that_there_is_not_is_refused_before_any_host_is_asked(play, folder):
    done = play(dir=str(folder / "asked"), reader="anybody")
    assert done.returncode == 2
    assert "gpu_audit_reader is anybody. Use module or helper." in said(done)
    assert "Read GPUs and their holders" not in done.stdout and not (folder / "asked").exists()


def test_hosts_without_the_helper_are_hosts_that_did_not_answer(play, folder):
    done = play(dir=str(folder / "helper"), reader="helper", hosts="here")
    assert done.returncode == 2
    assert "there is nothing to audit" in said(done) and "1 of 1 host did not answer (here)" in said(done)


SACCT = r"""#!/bin/sh
for word in "$@"; do
    case $word in
        --delimiter=*) mark=${word#*=} ;;
    esac
done
for field in 7 7_1 alice team-a COMPLETED START END 00:00:00 cpu=8,gres/gpu=2 node-1; do
    printf '%s%s' "$field" "$mark"
done
echo
"""


def test_accounts_of_slurm_are_in_the_report(play, server, host, inventory, folder):
    """Read the cluster's jobs once, and say why another cluster is missing."""
    end = int(time.time()) - 20 * 3600
    (host.bin / "sacct").write_text(SACCT.replace("START", str(end - 10 * 3600)).replace("END", str(end)))
    (host.bin / "sacct").chmod(0o755)
    with_slurm = yaml.safe_load(inventory.read_text())
    with_slurm["gpu_hosts"]["hosts"]["here"]["gpu_slurm_node"] = "node-1"
    with_slurm["gpu_slurm_accounting"] = {"hosts": {"here": {}, "far": {}}}
    path = folder / "slurm.yml"
    path.write_text(yaml.safe_dump(with_slurm))
    done = play(inventory=path, prometheus={"url": server}, dir=str(folder / "slurm"))
    assert done.returncode == 0, said(done)
    usage = read(folder / "slurm")["usage"]
    assert usage["sources"] == ["sacct on here"]
    (job,) = usage["jobs"]
    assert (job["name"], job["user"], job["account"], job["evidence"]) == ("7_1", "alice", "team-a", "whole node")
    assert (job["devices"], job["held_gpu_seconds"], job["efficiency_ratio"]) == (
        ["here gpu 0", "here gpu 1"],
        72000,
        0,
    )
    assert "far: it did not answer" in said(done)
