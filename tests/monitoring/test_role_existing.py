# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the role gpu_monitoring with an existing Prometheus.

A real Prometheus runs on this machine without root.
"""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.request

import pytest
import yaml

from tests.monitoring.prometheus_process import running
from tests.monitoring.role_site import Site
from tests.monitoring.rule_files import ALERTS, RULES

FILES = RULES[0].parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    directory = place / "prometheus" / "openfleet-gpu"
    (place / "grafana" / "dashboards").mkdir(parents=True)
    # This configuration follows docs/gpu_monitoring.md. Debian's Prometheus does not support scrape_config_files, so
    # the test copies the scrape configuration, as a site would do. Another test checks the copy.
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
    """Report a Prometheus whose configuration does not include the files.

    The configuration names the path of the rules, but not the path of the targets.
    """
    output, _ = site.run(fails=True, gpu_monitoring_health_timeout=30)
    said = " ".join(output.split())
    assert f"Prometheus at {site.url} has not loaded the targets of gpu-1, gpu-2." in said
    assert f"{site.directory}/openfleet-gpu-scrape.yml under scrape_config_files" in said
    written = yaml.safe_load((site.directory / "openfleet-gpu-scrape.yml").read_text())
    site.config.write_text(yaml.safe_dump({**yaml.safe_load(site.config.read_text()), **written}))


def test_prometheus_has_rules_prices_and_targets(site):
    prices = [{"model": "H100*", "price": 2.4}, {"model": "*", "price": 1}]
    _, changed = site.run(gpu_monitoring_prices=prices, gpu_monitoring_currency="EUR")
    assert changed
    # No program listens on these ports. Problems of the exporters are not errors of this host.
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
    _, changed = site.run(gpu_monitoring_prices=prices, gpu_monitoring_currency="EUR")
    assert changed == 0
    assert site.files() == before


def test_the_dashboards_are_there_in_the_sites_currency(site):
    there = {path.name: text for path, text in site.files().items() if path.parent.name == "dashboards"}
    for path in (FILES / "dashboards").glob("*.json"):
        assert there.pop(path.name) == path.read_text(encoding="utf-8").replace("currencyUSD", "currencyEUR")
    assert there == {}


def test_a_bad_file_does_not_take_the_place_of_a_good_one(site):
    rules = site.directory / "rules" / "openfleet-gpu-rules.yml"
    before = rules.read_text()
    # The currency is in a comment. The line break ends the comment, so promtool cannot parse the price after it.
    output, _ = site.run(
        gpu_monitoring_prices=[{"model": "*", "price": 3}], gpu_monitoring_currency="EUR\n  - broken: [", fails=True
    )
    assert "failed to validate" in output
    assert rules.read_text() == before
    assert names(site.prometheus.get("rules")["groups"])


def test_what_the_inventory_has_wrong_is_told_before_anything_is_written(site):
    """Report wrong variables before writing files.

    Some wrong variables are on GPU hosts and need facts.
    """
    more = site.place / "more.yml"
    address = {"dcgm_exporter_listen_address": "{{ ansible_facts.default_ipv4.address }}"}
    more.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {"gpu-3": address}}}))
    before = site.files()
    for entry in ("plan", "main"):
        output, changed = site.run(
            "-i", str(more), fails=True, entry=entry, gpu_monitoring_exporters=["dcgm", "abacus"]
        )
        said = " ".join(output.split())
        assert "monitor: gpu-3: dcgm_exporter_listen_address cannot be resolved (" in said
        assert "there are no rules for abacus" in said
        assert changed == 0
    assert site.files() == before


@pytest.mark.thorough
def test_rules_in_a_directory_that_prometheus_does_not_read_are_told_of(site):
    elsewhere = site.place / "elsewhere"
    output, _ = site.run(fails=True, gpu_monitoring_health_timeout=30, gpu_monitoring_rules_directory=str(elsewhere))
    said = " ".join(output.split())
    assert re.search(f"Prometheus at {site.url} has not loaded the rule groups (gpu_[a-z_]+, )+gpu_[a-z_]+", said)
    assert f"{elsewhere}/openfleet-gpu-*.yml under rule_files" in said
    shutil.rmtree(elsewhere)


@pytest.mark.thorough
def test_gpu_hosts_without_an_exporter_are_counted_and_files_of_no_further_use_go(site):
    more = site.place / "more.yml"
    more.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": {"gpu-3": {}}}}))
    old = site.directory / "rules" / "openfleet-gpu-former.yml"
    # These files belong to the site, and are in the rules folder that the role uses.
    others = [site.directory / "rules" / name for name in ("own.yml", "password-expiry.yml")]
    for path in (old, *others):
        path.write_text("groups: []\n")
    output, _ = site.run("-i", str(more), gpu_monitoring_prices=[{"model": "*", "price": 6}])
    assert "1 of 3 hosts of gpu_hosts are not watched" in " ".join(output.split())
    labels = [target["labels"] for target in site.prometheus.get("targets", state="active")["activeTargets"]]
    assert {each["host"] for each in labels} == {"gpu-1", "gpu-2"}
    assert price(site) == ["6"]
    # The run keeps files of other owners in the folder.
    assert not old.exists()
    assert all(path.exists() for path in others)
    for path in others:
        path.unlink()


def price(site):
    (table,) = (one for one in site.prometheus.get("rules")["groups"] if one["name"] == "openfleet_gpu_prices")
    return [rule["query"].rpartition(" + ")[2] for rule in table["rules"]]


@pytest.mark.thorough
def test_what_a_run_has_written_that_was_cut_off_is_taken_by_the_next(site):
    assert price(site) == ["6"]
    # The run writes the rules, and fails before it tells Prometheus to reload them.
    asked = {"gpu_monitoring_prices": [{"model": "*", "price": 7}]}
    site.run(
        fails=True,
        gpu_monitoring_grafana_provisioning_directory=str(site.place / "provisioning"),
        gpu_monitoring_grafana_group="no-such-group",
        **asked,
    )
    assert price(site) == ["6"]
    output, changed = site.run(**asked)
    assert "has not loaded its files yet" in output
    # The next run changes these rules, and removes the two files for Grafana that the failed run left behind.
    assert changed == 3
    assert not [path for path in (site.place / "provisioning").rglob("*") if path.is_file()]
    assert price(site) == ["7"]
    output, changed = site.run(**asked)
    assert "has not loaded its files yet" not in output
    assert changed == 0


@pytest.mark.thorough
@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="asks Debian's packages")
def test_a_prometheus_whose_packages_were_there_is_not_taken_over(site):
    """Refuse a Prometheus that was installed before the role ran.

    The test uses a package that every Debian has.
    """
    before = site.files()
    for options in ((), ("--check",)):
        output, changed = site.run(
            *options, fails=True, gpu_monitoring_source="packages", gpu_monitoring_prometheus_packages=["base-files"]
        )
        said = " ".join(output.split())
        assert "base-files is already installed, but not by this role" in said
        assert "gpu_monitoring_source: existing" in said and "gpu_monitoring_take_over: true" in said
        assert changed == 0
    assert site.files() == before


@pytest.fixture
def failing_rule(site):
    """Add a rule that cannot be evaluated, and return a function that removes it.

    The rule is in a group with the name of one of the role's groups.
    """
    before = site.config.read_text()
    rules = site.place / "failing.yml"
    two = "(%s)" % " or ".join('label_replace(vector(1), "side", "%s", "", "")' % side for side in ("left", "right"))
    group = {"name": "gpu_fleet_alerts", "rules": [{"record": "gpu:failing", "expr": f"{two} * on () {two}"}]}
    rules.write_text(json.dumps({"groups": [group]}))
    config = yaml.safe_load(before)
    config["rule_files"].append(str(rules))
    site.config.write_text(yaml.safe_dump(config))

    def mend():
        site.config.write_text(before)
        reload(site)

    try:
        reload(site)
        deadline = time.monotonic() + 300
        while failing(site) != ["gpu:failing"]:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield mend
    finally:
        mend()


def reload(site):
    urllib.request.urlopen(urllib.request.Request(f"{site.url}/-/reload", method="POST"), timeout=60).close()


def failing(site):
    found = [rule for group in site.prometheus.get("rules")["groups"] for rule in group["rules"]]
    return [rule["name"] for rule in found if rule["health"] == "err"]


@pytest.mark.thorough
def test_rules_that_prometheus_cannot_evaluate_are_told_with_its_words(site, failing_rule):
    output, _ = site.run(fails=True, gpu_monitoring_health_timeout=30)
    said = " ".join(output.split())
    assert f"Prometheus at {site.url} has loaded the rules, but cannot evaluate 1 of them" in said
    assert "gpu:failing: found duplicate series for the match group {}" in said


@pytest.mark.thorough
def test_rules_that_fail_for_a_moment_are_waited_for(site, failing_rule):
    """Wait for rules that fail only for a short time.

    For example, the series of a removed target end only two intervals later, and rules need the first series of a new
    target.
    """
    # When the role has found the failing rule, repair it.
    asked_again = r"FAILED - RETRYING: .*Wait until Prometheus has evaluated the rules"
    changed = {"gpu_monitoring_prices": [{"model": "*", "price": 8}], "gpu_monitoring_health_timeout": 300}
    site.run(meanwhile=(asked_again, failing_rule), **changed)
    assert failing(site) == []


def test_reset_leaves_what_others_have_and_prometheus_forgets_the_rules(site):
    own = site.directory / "prometheus.yml"
    own.write_text("{}\n")
    _, changed = site.run(entry="reset")
    assert changed
    assert set(site.files()) == {own}
    assert list(site.directory.iterdir()) == [own]
    # This folder existed before the role ran.
    assert (site.place / "grafana" / "dashboards").is_dir()
    own.unlink()
    assert site.prometheus.get("rules")["groups"] == []
    _, changed = site.run(entry="reset")
    assert changed == 0
