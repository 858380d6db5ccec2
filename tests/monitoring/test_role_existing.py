# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role gpu_monitoring with a Prometheus that is there: on this machine, without root, on a real Prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_process import free_port, running
from rule_files import ALERTS, ROOT, RULES, TOOLS

FILES = RULES[0].parents[1]
PLAY = [
    {
        "hosts": "monitor",
        "gather_facts": False,
        "tasks": [
            {
                "ansible.builtin.include_role": {
                    "name": "openfleet.gpu.gpu_monitoring",
                    "tasks_from": "{{ entry | default('main') }}",
                }
            }
        ],
    }
]

#: For what is between the role and the files alone.
NOBODY_ASKED = {
    "gpu_monitoring_health_timeout": 0,
    "gpu_monitoring_promtool": "",
    "gpu_monitoring_reload": "none",
    "gpu_monitoring_exporters": ["host"],
}


class Site:
    """A place for all files, and an inventory of a monitoring host and two GPU hosts that nobody answers for."""

    def __init__(self, place: Path, url: str):
        self.place, self.url = place, url
        self.directory = place / "prometheus" / "openfleet-gpu"
        hosts = {f"gpu-{number}": {"dcgm_exporter_listen_address": "127.0.0.1%d" % number} for number in (1, 2)}
        for variables in hosts.values():
            variables["dcgm_exporter_port"] = free_port()
        inventory = {
            "gpu_monitoring": {
                "hosts": {"monitor": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}}
            },
            "gpu_hosts": {"hosts": hosts},
        }
        (place / "hosts.yml").write_text(yaml.safe_dump(inventory))
        (place / "play.yml").write_text(yaml.safe_dump(PLAY))

    def run(self, *options, fails=False, **variables):
        """The output, and how many tasks changed something."""
        variables = {
            "gpu_monitoring_source": "existing",
            "gpu_monitoring_directory": str(self.directory),
            "gpu_monitoring_grafana_dashboards_directory": str(self.place / "grafana" / "dashboards"),
            "gpu_monitoring_grafana_group": os.getgid(),
            "gpu_monitoring_promtool": str(TOOLS / "promtool"),
            "gpu_monitoring_reload": "url",
            "gpu_monitoring_url": self.url,
            **variables,
        }
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_HOME": str(self.place / "ansible"),
            "ANSIBLE_LOCAL_TEMP": str(self.place / "ansible" / "local"),
            "ANSIBLE_REMOTE_TEMP": str(self.place / "ansible" / "remote"),
            "ANSIBLE_NOCOLOR": "1",
        }
        made = subprocess.run(
            [
                Path(sys.executable).with_name("ansible-playbook"),
                "-i",
                self.place / "hosts.yml",
                self.place / "play.yml",
                "-e",
                json.dumps(variables),
                *options,
            ],
            capture_output=True,
            text=True,
            timeout=600,
            env=environment,
            cwd=ROOT,
        )
        output = made.stdout + made.stderr
        assert (made.returncode != 0) == fails, output
        (changed,) = re.findall(r"monitor +: ok=\d+ +changed=(\d+)", output) or ["0"]
        return output, int(changed)

    def files(self):
        found = [path for top in (self.directory, self.place / "grafana") for path in top.rglob("*") if path.is_file()]
        return {path: path.read_text(encoding="utf-8") for path in found}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    directory = place / "prometheus" / "openfleet-gpu"
    (place / "grafana" / "dashboards").mkdir(parents=True)
    # What docs/gpu_monitoring.md asks for. This Prometheus is older than scrape_config_files, so that a site would copy the
    # scrape configuration; see the test for it.
    config = place / "prometheus.yml"
    config.write_text(
        yaml.safe_dump(
            {"global": {"evaluation_interval": "1s"}, "rule_files": [f"{directory}/rules/openfleet-gpu-*.yml"]}
        )
    )
    with running(place, config, "--web.enable-lifecycle") as prometheus:
        site = Site(place, prometheus.url)
        site.prometheus, site.config = prometheus, config
        yield site


def names(groups):
    return {group["name"] for group in groups}


def test_a_dry_run_writes_nothing(site):
    _, changed = site.run("--check", "--diff")
    assert changed
    assert site.files() == {}


def test_a_prometheus_that_does_not_name_the_files_is_told_of(site):
    """Its configuration has the rules, where they are to be, and not yet the targets."""
    elsewhere = site.place / "elsewhere"
    output, _ = site.run(fails=True, gpu_monitoring_health_timeout=4, gpu_monitoring_rules_directory=str(elsewhere))
    said = " ".join(output.split())
    assert re.search(
        f"Prometheus at {site.url} has not got the rule groups (gpu_[a-z_]+, )+gpu_[a-z_]+, nor the targets", said
    )
    assert f"{elsewhere}/openfleet-gpu-*.yml under rule_files" in said
    output, _ = site.run(fails=True, gpu_monitoring_health_timeout=4)
    said = " ".join(output.split())
    assert f"Prometheus at {site.url} has not got the targets of gpu-1, gpu-2." in said
    assert f"{site.directory}/openfleet-gpu-scrape.yml under scrape_config_files" in said
    written = yaml.safe_load((site.directory / "openfleet-gpu-scrape.yml").read_text())
    site.config.write_text(yaml.safe_dump({**yaml.safe_load(site.config.read_text()), **written}))


def test_prometheus_has_rules_prices_and_targets(site):
    prices = [{"model": "H100*", "price": 2.4}, {"model": "*", "price": 1}]
    _, changed = site.run(gpu_monitoring_prices=prices)
    assert changed
    # The free ports: nobody listens there, and that is no failure of this host.
    given = [FILES / "rules" / f"{name}.yml" for name in ("dcgm", "embedded", "host")]
    expected = {name for path in [*given, *ALERTS] for name in names(yaml.safe_load(path.read_text())["groups"])}
    loaded = site.prometheus.get("rules")["groups"]
    assert expected | {"openfleet_gpu_prices"} <= names(loaded)
    (table,) = (group for group in loaded if group["name"] == "openfleet_gpu_prices")
    assert [rule["name"] for rule in table["rules"]] == ["gpu:price_per_hour"] * 2
    labels = [target["labels"] for target in site.prometheus.get("targets", state="active")["activeTargets"]]
    assert {(each["job"], each["host"]) for each in labels} == {("gpu_exporter", "gpu-1"), ("gpu_exporter", "gpu-2")}
    assert not any(name.startswith("__") or "access" in name for each in labels for name in each)

    before = site.files()
    _, changed = site.run(gpu_monitoring_prices=prices)
    assert changed == 0
    assert site.files() == before


def test_the_dashboards_are_there_in_the_sites_currency(site):
    site.run(gpu_monitoring_currency="EUR")
    there = {path.name: text for path, text in site.files().items() if path.parent.name == "dashboards"}
    for path in (FILES / "dashboards").glob("*.json"):
        assert there.pop(path.name) == path.read_text(encoding="utf-8").replace("currencyUSD", "currencyEUR")
    assert there == {}


def test_a_bad_file_does_not_take_the_place_of_a_good_one(site):
    rules = site.directory / "rules" / "openfleet-gpu-rules.yml"
    before = rules.read_text()
    # A price that promtool cannot parse: the currency stands in a comment, and a comment ends with its line.
    output, _ = site.run(
        gpu_monitoring_prices=[{"model": "*", "price": 3}], gpu_monitoring_currency="EUR\n  - broken: [", fails=True
    )
    assert "failed to validate" in output
    assert rules.read_text() == before
    assert names(site.prometheus.get("rules")["groups"])


def test_what_the_inventory_has_wrong_is_told_before_anything_is_written(site):
    before = site.files()
    output, changed = site.run(fails=True, gpu_monitoring_exporters=["dcgm", "abacus"])
    assert "there are no rules for abacus" in " ".join(output.split())
    assert changed == 0
    assert site.files() == before


def test_variables_of_gpu_hosts_that_need_facts_are_told_with_their_host(site):
    more = site.place / "more.yml"
    address = {"dcgm_exporter_listen_address": "{{ ansible_facts.default_ipv4.address }}"}
    more.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {"gpu-3": address}}}))
    before = site.files()
    for entry in ("plan", "main"):
        output, changed = site.run("-i", str(more), fails=True, entry=entry)
        assert "monitor: gpu-3: dcgm_exporter_listen_address cannot be worked out (" in " ".join(output.split())
        assert changed == 0
    assert site.files() == before


def test_gpu_hosts_without_an_exporter_are_counted_and_fail_nothing(site):
    more = site.place / "more.yml"
    more.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {"gpu-3": {}}}}))
    output, _ = site.run("-i", str(more))
    assert "1 of 3 hosts of gpu_hosts are not watched" in " ".join(output.split())
    labels = [target["labels"] for target in site.prometheus.get("targets", state="active")["activeTargets"]]
    assert {each["host"] for each in labels} == {"gpu-1", "gpu-2"}


def test_files_of_no_further_use_go_and_others_stay(site):
    old = site.directory / "rules" / "openfleet-gpu-former.yml"
    # A site's alerts on passwords that expire, where the rules are those of its rules.d.
    others = [site.directory / "rules" / name for name in ("own.yml", "password-expiry.yml")]
    for path in (old, *others):
        path.write_text("groups: []\n")
    site.run()
    assert not old.exists()
    assert all(path.exists() for path in others)
    for path in others:
        path.unlink()


def test_what_a_run_has_written_that_was_cut_off_is_taken_by_the_next(site):
    def price():
        (table,) = (one for one in site.prometheus.get("rules")["groups"] if one["name"] == "openfleet_gpu_prices")
        return [rule["query"].rpartition(" + ")[2] for rule in table["rules"]]

    site.run(gpu_monitoring_prices=[{"model": "*", "price": 6}])
    assert price() == ["6"]
    # It ends behind the rules, and before anybody is told of them.
    asked = {"gpu_monitoring_prices": [{"model": "*", "price": 7}]}
    site.run(
        fails=True,
        gpu_monitoring_grafana_provisioning_directory=str(site.place / "provisioning"),
        gpu_monitoring_grafana_group="no-such-group",
        **asked,
    )
    assert price() == ["6"]
    output, changed = site.run(**asked)
    assert "has not taken its files yet" in output
    # That, and what the other run wrote for Grafana, with the note of where.
    assert changed == 3
    assert not [path for path in (site.place / "provisioning").rglob("*") if path.is_file()]
    assert price() == ["7"]
    output, changed = site.run(**asked)
    assert "has not taken its files yet" not in output
    assert changed == 0


@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="asks Debian's packages")
def test_a_prometheus_whose_packages_were_there_is_not_taken_over(site):
    """By a package that every Debian has."""
    before = site.files()
    for options in ((), ("--check",)):
        output, changed = site.run(
            *options, fails=True, gpu_monitoring_source="packages", gpu_monitoring_prometheus_packages=["base-files"]
        )
        said = " ".join(output.split())
        assert "base-files is there already, and not from this role" in said
        assert "gpu_monitoring_source: existing" in said and "gpu_monitoring_take_over: true" in said
        assert changed == 0
    assert site.files() == before


def test_slashes_that_mean_nothing_in_directories_change_nothing(site):
    """A second run would not know what the first has written, and remove it."""
    provisioning = site.place / "slashes"
    plain = {**NOBODY_ASKED, "gpu_monitoring_grafana_provisioning_directory": str(provisioning)}
    site.run(**plain)
    before = site.files()
    more = {
        **NOBODY_ASKED,
        "gpu_monitoring_directory": f"{site.directory}//",
        "gpu_monitoring_rules_directory": f"{site.directory}/./rules/",
        "gpu_monitoring_targets_directory": f"{site.directory}//targets/.",
        "gpu_monitoring_grafana_dashboards_directory": f"{site.place}//grafana/dashboards/",
        "gpu_monitoring_grafana_provisioning_directory": f"{provisioning}/",
    }
    _, changed = site.run(**more)
    assert changed == 0
    assert site.files() == before
    assert {path.name for path in provisioning.rglob("*.yml")} == {"openfleet-gpu.yml"}


def test_what_grafana_is_told_goes_with_the_file_that_tells_it(site):
    """And nothing else: data sources that are not in a file with prune are never removed."""
    provisioning = site.place / "provisioning"
    asked = {**NOBODY_ASKED, "gpu_monitoring_grafana_provisioning_directory": str(provisioning)}
    site.run(**asked)
    source = provisioning / "datasources" / "openfleet-gpu.yml"
    written = yaml.safe_load(source.read_text())
    assert written["prune"] is True and [each["uid"] for each in written["datasources"]] == ["openfleet-gpu"]
    assert "deleteDatasources" not in written
    output, _ = site.run(**asked, gpu_monitoring_grafana_datasource=False)
    assert not source.exists()
    assert (provisioning / "dashboards" / "openfleet-gpu.yml").exists()
    assert "RUNNING HANDLER [openfleet.gpu.gpu_monitoring : Restart Grafana]" in output


def test_directories_of_earlier_runs_are_left_clean(site):
    """Moved, and then wanted no more; what others have in them stays."""
    provisioning, moved = site.place / "provisioning", site.place / "grafana" / "moved"
    old = site.place / "grafana" / "dashboards"
    asked = {**NOBODY_ASKED, "gpu_monitoring_grafana_provisioning_directory": str(provisioning)}
    site.run(**asked)
    others = old / "own.json"
    others.write_text("{}\n")
    asked["gpu_monitoring_grafana_dashboards_directory"] = str(moved)
    _, changed = site.run("--check", **asked)
    assert changed and list(old.glob("openfleet-gpu-*.json"))
    site.run(**asked)
    assert list(old.iterdir()) == [others]
    assert len(list(moved.iterdir())) == len(list((FILES / "dashboards").glob("*.json")))
    _, changed = site.run(**asked)
    assert changed == 0

    asked.update(gpu_monitoring_grafana_dashboards_directory="", gpu_monitoring_grafana_provisioning_directory="")
    site.run(**asked)
    assert list(moved.iterdir()) == []
    assert not [path for path in provisioning.rglob("*") if path.is_file()]
    noted = sorted((site.directory / "written-directories").read_text().split())
    assert noted == sorted(str(site.directory / name) for name in ("", "rules", "targets"))
    _, changed = site.run(**asked)
    assert changed == 0
    others.unlink()


def test_a_directory_may_be_a_link(site):
    """Its files are found, and those that are wanted are not taken for others by their second path."""
    real, link = site.place / "grafana" / "real", site.place / "grafana" / "link"
    real.mkdir()
    link.symlink_to(real)
    site.run(**NOBODY_ASKED, gpu_monitoring_grafana_dashboards_directory=str(link))
    before = site.files()
    assert len(list(real.iterdir())) == len(list((FILES / "dashboards").glob("*.json")))
    former = real / "openfleet-gpu-9-former.json"
    former.write_text("{}\n")
    _, changed = site.run(**NOBODY_ASKED, gpu_monitoring_grafana_dashboards_directory=str(link))
    assert changed == 1 and not former.exists()
    assert site.files() == before

    # The same place by its other name.
    site.run(**NOBODY_ASKED, gpu_monitoring_grafana_dashboards_directory=str(real))
    assert {path for path in before if path.parent == real} == set(real.iterdir())
    site.run(**NOBODY_ASKED)
    assert list(real.iterdir()) == []
    link.unlink()
    real.rmdir()


def test_the_plan_is_worked_out_once(site):
    """For a thousand hosts it takes seconds."""
    count = site.place / "count"
    more = site.place / "more.yml"
    address = {"gpu_monitoring_address": "{{ lookup('ansible.builtin.pipe', 'echo >>%s; echo gpu-3') }}" % count}
    more.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {"gpu-3": address}}}))
    site.run("-i", str(more), **NOBODY_ASKED)
    assert count.read_text() == "\n"
    count.unlink()
    site.run("-i", str(more), "--check", "--diff", **NOBODY_ASKED)
    assert count.read_text() == "\n"


def test_a_password_is_what_the_inventory_says_to_the_letter(site):
    more = site.place / "more.yml"
    password = "'{{ 7 * 7 }}' \"%d\" {# no #}"
    users = "dcgm_exporter_basic_auth_users: {prom: !unsafe %s}" % json.dumps(password)
    more.write_text("gpu_hosts: {hosts: {gpu-3: {gpu_monitoring_address: gpu-3, %s}}}\n" % users)
    output, _ = site.run("-i", str(more), "-vvv", "--diff", **NOBODY_ASKED, gpu_monitoring_group=os.getgid())
    assert [path.read_text() for path in (site.directory / "secrets").iterdir()] == [password]
    assert "7 * 7" not in output
    site.run(**NOBODY_ASKED)
    assert list((site.directory / "secrets").iterdir()) == []


@pytest.fixture
def failing_rule(site):
    """Gives a rule that cannot be evaluated for some seconds from now on, in a group with the name of one of the role's."""
    before = site.config.read_text()
    rules = site.place / "failing.yml"

    def give(seconds):
        two = "(%s)" % " or ".join(
            'label_replace(vector(1), "side", "%s", "", "")' % side for side in ("left", "right")
        )
        expr = f"{two} * on () ({two} and on () vector(time()) < {time.time() + seconds:.0f})"
        group = {"name": "gpu_fleet_alerts", "rules": [{"record": "gpu:failing", "expr": expr}]}
        rules.write_text(json.dumps({"groups": [group]}))
        config = yaml.safe_load(before)
        config["rule_files"].append(str(rules))
        site.config.write_text(yaml.safe_dump(config))
        reload(site)
        deadline = time.monotonic() + 60
        while failing(site) != ["gpu:failing"]:
            assert time.monotonic() < deadline
            time.sleep(0.2)

    yield give
    site.config.write_text(before)
    reload(site)


def reload(site):
    urllib.request.urlopen(urllib.request.Request(f"{site.url}/-/reload", method="POST"), timeout=60).close()


def failing(site):
    found = [rule for group in site.prometheus.get("rules")["groups"] for rule in group["rules"]]
    return [rule["name"] for rule in found if rule["health"] == "err"]


def test_rules_that_prometheus_cannot_evaluate_are_told_with_its_words(site, failing_rule):
    failing_rule(3600)
    output, _ = site.run(fails=True, gpu_monitoring_health_timeout=4)
    said = " ".join(output.split())
    assert f"Prometheus at {site.url} has the rules, and cannot evaluate 1 of them" in said
    assert "gpu:failing: found duplicate series for the match group {}" in said


def test_rules_that_fail_for_a_moment_are_waited_for(site, failing_rule):
    """The series of a target that is gone end two intervals later, and one that is new has to be evaluated first."""
    failing_rule(25)
    site.run(gpu_monitoring_prices=[{"model": "*", "price": 8}])
    assert failing(site) == []


def test_reset_leaves_what_others_have_and_prometheus_forgets_the_rules(site):
    own = site.directory / "prometheus.yml"
    own.write_text("{}\n")
    _, changed = site.run(entry="reset")
    assert changed
    assert set(site.files()) == {own}
    assert list(site.directory.iterdir()) == [own]
    # It was there before.
    assert (site.place / "grafana" / "dashboards").is_dir()
    own.unlink()
    assert site.prometheus.get("rules")["groups"] == []
    _, changed = site.run(entry="reset")
    assert changed == 0
