# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the role gpu_monitoring: defaults, documentation, scrape targets, prices."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from jinja2.exceptions import UndefinedError

from ansible_collections.openfleet.gpu.plugins.filter import scrape_plan as scraping
from ansible_collections.openfleet.gpu.plugins.filter.overdue_services import overdue_services
from ansible_collections.openfleet.gpu.plugins.filter.price_rules import glob_pattern, price_rules
from ansible_collections.openfleet.gpu.plugins.filter.scrape_plan import scrape_plan

pytestmark = pytest.mark.core

ROLES = Path(__file__).parents[3] / "roles"
ROLE = ROLES / "gpu_monitoring"


def defaults(role):
    return yaml.safe_load((role / "defaults" / "main.yml").read_text(encoding="utf-8"))


def test_the_roles_defaults_are_those_of_its_argument_specs():
    specs = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))["argument_specs"]
    for entry_point in specs.values():
        assert {name: option["default"] for name, option in entry_point["options"].items()} == defaults(ROLE)


def test_exporter_defaults_are_equal_here():
    """Compare defaults that the role repeats.

    Scraping reads only the inventory of GPU hosts, so the role repeats defaults of their exporters.
    """
    exporter = defaults(ROLES / "dcgm_exporter")
    assert exporter["dcgm_exporter_state"] == "present"
    assert exporter["dcgm_exporter_listen_address"] == scraping.ADDRESS
    assert exporter["dcgm_exporter_port"] == scraping.PORT
    assert not exporter["dcgm_exporter_tls_certificate"]
    assert not exporter["dcgm_exporter_basic_auth_users"]


@pytest.mark.parametrize("playbook", ["site.yml", "reset.yml"])
def test_unreachable_monitoring_host_does_not_block_the_fleet(playbook):
    """If all hosts of a play fail, the playbook ends.

    So the playbook handles monitoring hosts last.
    """
    plays = yaml.safe_load((ROLES.parent / "playbooks" / playbook).read_text(encoding="utf-8"))
    hosts = [play["hosts"] for play in plays if play.get("become")]
    late = [pattern for pattern in hosts if "gpu_monitoring" in pattern or "gpu_audit" in pattern]
    assert "gpu_monitoring" in late[0] and "gpu_audit" in late[-1]
    assert hosts[-len(late) :] == late
    assert all("gpu_hosts" in pattern for pattern in hosts[: -len(late)])


def target(plan, host, job="gpu_exporter"):
    (found,) = (one for one in plan["targets"] if one["labels"]["host"] == host and one["labels"]["job"] == job)
    return found


def test_hosts_are_scraped_at_their_exporters_address():
    plan = scrape_plan(
        ["b", "a", "off", "six", "wide"],
        {
            "a": {"dcgm_exporter_listen_address": "192.0.2.1"},
            "b": {
                "dcgm_exporter_listen_address": "192.0.2.2",
                "dcgm_exporter_port": 9500,
                "gpu_monitoring_labels": {"rack": 7},
            },
            "off": {"dcgm_exporter_state": "absent"},
            "six": {"dcgm_exporter_listen_address": "2001:db8::1"},
            "wide": {"dcgm_exporter_listen_address": "0.0.0.0"},
        },
    )
    assert plan["problems"] == []
    assert plan["hosts"] == ["a", "b", "six", "wide"]
    assert [group["targets"] for group in plan["targets"]] == [
        ["192.0.2.1:9400"],
        ["192.0.2.2:9500"],
        ["[2001:db8::1]:9400"],
        ["wide:9400"],
    ]
    assert target(plan, "b")["labels"] == {
        "job": "gpu_exporter",
        "host": "b",
        "rack": "7",
        "__scheme__": "http",
        "__access__": "open",
    }


def test_with_tls_a_host_is_scraped_by_its_name_unless_it_has_an_address():
    tls = {"dcgm_exporter_listen_address": "192.0.2.1", "dcgm_exporter_tls_certificate": "/srv/a.pem"}
    plan = scrape_plan(["a", "b"], {"a": tls, "b": {**tls, "gpu_monitoring_address": "b.mgmt"}})
    assert [group["targets"] for group in plan["targets"]] == [["a:9400"], ["b.mgmt:9400"]]
    assert {group["labels"]["__scheme__"] for group in plan["targets"]} == {"https"}


def test_exporter_on_loopback_is_scraped_only_on_the_monitoring_host():
    plan = scrape_plan(
        ["here", "there", "tunnel"],
        {
            "here": {"dcgm_exporter_source": "embedded"},
            "there": {"dcgm_exporter_state": "present"},
            "tunnel": {"gpu_monitoring_address": "gw"},
        },
        here="here",
    )
    assert target(plan, "here")["targets"] == ["127.0.0.1:9400"]
    assert target(plan, "tunnel")["targets"] == ["gw:9400"]
    (problem,) = plan["problems"]
    assert problem.startswith("there: its exporter listens on 127.0.0.1")
    assert "gpu_monitoring_address" in problem


def test_hosts_with_one_password_share_a_job():
    def host(users):
        return {"dcgm_exporter_listen_address": "192.0.2.1", "dcgm_exporter_basic_auth_users": users}

    users = {"a": {"prom": "one"}, "b": {}, "c": {"prom": "two", "other": "one"}, "d": {"prom": "one"}}
    plan = scrape_plan(list(users), {name: host(each) for name, each in users.items()})
    ways = {one["name"]: (one["user"], one["password"]) for one in plan["access"]}
    entered = {name: ways[target(plan, name)["labels"]["__access__"]] for name in users}
    assert entered == {"a": ("prom", "one"), "b": ("", ""), "c": ("prom", "two"), "d": ("prom", "one")}
    assert len(ways) == 3
    assert not any(secret in json.dumps(plan["targets"]) for secret in ("one", "two"))

    named = scrape_plan(["a", "c"], {name: host(users[name]) for name in "ac"}, user="other")
    assert {one["password"] for one in named["access"]} == {"", "one"}
    assert named["problems"] == [
        "a: gpu_monitoring_scrape_user is other, but dcgm_exporter_basic_auth_users has only prom. Add the user, or set one of "
        "these."
    ]


def test_password_file_name_is_stable():
    def names(*hosts):
        passwords = {"a": "one", "b": "two", "c": "three"}
        variables = {
            host: {
                "dcgm_exporter_listen_address": "192.0.2.1",
                "dcgm_exporter_basic_auth_users": {"prom": passwords[host]},
            }
            for host in hosts
        }
        return {one["password"]: one["name"] for one in scrape_plan(hosts, variables)["access"] if one["user"]}

    alone = names("b")
    assert re.fullmatch(r"password-[0-9a-f]+", alone["two"])
    assert names("a", "b", "c")["two"] == names("b", "c")["two"] == alone["two"]
    assert len(set(names("a", "b", "c").values())) == 3


def test_host_without_exporter_is_not_scraped():
    plan = scrape_plan(
        ["bare", "off", "seen"],
        {
            "bare": {"gpu_layout": [], "gpu_monitoring_labels": {"cluster": "one"}},
            "off": {"dcgm_exporter_state": "absent"},
            "seen": {"dcgm_exporter_source": "packages", "gpu_monitoring_address": "seen.mgmt"},
        },
    )
    assert plan["problems"] == []
    assert (plan["hosts"], plan["unwatched"]) == (["seen"], ["bare"])
    assert [group["labels"]["host"] for group in plan["targets"]] == ["seen"]


class Unknown(dict):
    """Act like hostvars, in which a variable that needs unknown values raises."""

    def get(self, name, default=None):
        if super().get(name) is Unknown:
            raise UndefinedError("object of type 'dict' has no attribute 'default_ipv4'")
        return super().get(name, default)


def test_unresolvable_variable_is_named_with_host_and_fix():
    plan = scrape_plan(
        ["a", "b", "c"],
        {
            "a": Unknown(dcgm_exporter_listen_address=Unknown),
            "b": Unknown(dcgm_exporter_listen_address=Unknown, gpu_monitoring_address="b.mgmt"),
            "c": Unknown(
                gpu_monitoring_address="c", dcgm_exporter_port="many", gpu_monitoring_host_exporter_port=70000
            ),
        },
    )
    first, *ports = plan["problems"]
    assert first.startswith("a: dcgm_exporter_listen_address cannot be resolved (object of type 'dict' has no")
    assert first.endswith("or set gpu_monitoring_address.")
    assert ports == [
        "c: dcgm_exporter_port is 'many', which is not a port. Set a number from 0 to 65535.",
        "c: gpu_monitoring_host_exporter_port is 70000, which is not a port. Set a number from 0 to 65535.",
    ]


def test_node_exporters_and_further_targets_are_scraped_too():
    plan = scrape_plan(
        ["a"],
        {"a": {"dcgm_exporter_listen_address": "192.0.2.1", "gpu_monitoring_host_exporter_port": 9100}},
        extra=[{"targets": ["npu-01:8082"], "labels": {"host": "npu-01"}}],
    )
    assert target(plan, "a", "gpu_host")["targets"] == ["a:9100"]
    assert target(plan, "npu-01") == {
        "targets": ["npu-01:8082"],
        "labels": {"job": "gpu_exporter", "host": "npu-01", "__access__": "open"},
    }


def test_reserved_labels_are_refused():
    plan = scrape_plan(
        ["a"], {"a": {"gpu_monitoring_address": "a", "gpu_monitoring_labels": {"host": "x", "rack": "1"}}}
    )
    assert plan["problems"] == [
        "a: gpu_monitoring_labels has the label host, which is reserved for the collection. Rename it."
    ]
    assert target(plan, "a")["labels"]["host"] == "a"


TWICE = "Rules identify an exporter by job and address, so its GPUs would be attributed to both."


def test_address_scraped_twice_is_named_with_its_hosts():
    """Both series would have the same job and instance labels."""
    plan = scrape_plan(
        ["a", "b", "c", "d"],
        {
            "a": {"gpu_monitoring_address": "gw", "gpu_monitoring_host_exporter_port": 9100},
            "b": {"gpu_monitoring_address": "gw", "gpu_monitoring_host_exporter_port": 9100},
            # Host c has other ports at the end of one tunnel, and one port in two jobs.
            "c": {
                "gpu_monitoring_address": "gw",
                "dcgm_exporter_port": 9401,
                "gpu_monitoring_host_exporter_port": 9400,
            },
            "d": {"dcgm_exporter_listen_address": "2001:db8::1"},
        },
        extra=[
            {"targets": ["npu-01:8082", "[2001:db8::1]:9400"]},
            {"targets": ["npu-01:8082"], "labels": {"job": "npu"}},
            {"targets": ["npu-01:8082"]},
        ],
    )
    assert plan["problems"] == [
        "b: its exporter is scraped at gw:9400, like that of a. %s Set another gpu_monitoring_address or "
        "dcgm_exporter_port." % TWICE,
        "b: its node_exporter is scraped at gw:9100, like that of a. %s Set another gpu_monitoring_address or "
        "gpu_monitoring_host_exporter_port." % TWICE,
        "gpu_monitoring_extra_targets[0] has the target [2001:db8::1]:9400, which d also has. %s Remove one of them."
        % TWICE,
        "gpu_monitoring_extra_targets[2] has the target npu-01:8082, which gpu_monitoring_extra_targets[0] also has. %s "
        "Remove one of them." % TWICE,
    ]


@pytest.mark.parametrize("listen", ["127.0.0.1", "::1", "localhost"])
def test_certificate_name_that_resolves_to_loopback_is_refused(listen):
    tls = {"dcgm_exporter_listen_address": listen, "dcgm_exporter_tls_certificate": "/srv/here.pem"}
    (problem,) = scrape_plan(["here"], {"here": tls}, here="here")["problems"]
    assert problem.startswith("here: its exporter has a certificate and listens on %s" % listen)
    assert "https://here:9400" in problem and "gpu_monitoring_address" in problem
    plan = scrape_plan(["here"], {"here": {**tls, "gpu_monitoring_address": "localhost"}}, here="here")
    assert plan["problems"] == []
    assert target(plan, "here")["targets"] == ["localhost:9400"]


@pytest.mark.parametrize("address", ["tunnel:9500", "[2001:db8::1]:9500", "192.0.2.1:9400", "http://tunnel", "a/b"])
@pytest.mark.parametrize("variable", ["gpu_monitoring_address", "dcgm_exporter_listen_address"])
def test_invalid_address_is_reported_once(variable, address):
    host = {variable: address, "gpu_monitoring_host_exporter_port": 9100}
    assert scrape_plan(["a"], {"a": host})["problems"] == [
        "a: %s is %s, which is not a plain name or address. Remove scheme, port and path. Set ports with "
        "dcgm_exporter_port and gpu_monitoring_host_exporter_port." % (variable, address)
    ]


@pytest.mark.parametrize("variable", ["gpu_monitoring_address", "dcgm_exporter_listen_address"])
@pytest.mark.parametrize("address", ["2001:db8::1", "[2001:db8::1]"])
def test_brackets_around_an_address_are_one_pair(variable, address):
    plan = scrape_plan(["a"], {"a": {variable: address}})
    assert plan["problems"] == []
    assert target(plan, "a")["targets"] == ["[2001:db8::1]:9400"]


def test_brackets_do_not_hide_a_loopback_address():
    (problem,) = scrape_plan(["a"], {"a": {"dcgm_exporter_listen_address": "[::1]"}})["problems"]
    assert problem.startswith("a: its exporter listens on ::1, which other hosts cannot reach.")


@pytest.mark.parametrize("name", ["rack-no", "2nd", "", "ort\u00fc", "__address__", "__scheme__", "job"])
def test_label_invalid_in_prometheus_is_named_with_its_host(name):
    """Prometheus would refuse the file, and with it the targets of all hosts."""
    plan = scrape_plan(["a"], {"a": {"gpu_monitoring_address": "a", "gpu_monitoring_labels": {name: "1", "_ok2": 2}}})
    (problem,) = plan["problems"]
    assert problem.startswith("a: gpu_monitoring_labels has the label %s" % name)
    assert {"_ok2": "2"}.items() <= target(plan, "a")["labels"].items()


@pytest.mark.parametrize(
    ("labels", "said"), [(["rack"], "is ['rack']."), ({"rack": None}, "the label rack with the value None")]
)
def test_malformed_labels_are_named_with_their_host(labels, said):
    plan = scrape_plan(["a"], {"a": {"gpu_monitoring_address": "a", "gpu_monitoring_labels": labels}})
    (problem,) = plan["problems"]
    assert problem.startswith("a: gpu_monitoring_labels ") and said in problem


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ({"labels": {"host": "x"}}, "has no targets"),
        ({"targets": []}, "has no targets"),
        ({"targets": "npu-01:8082"}, "has no targets"),
        ({"targets": ["http://npu-01:8082"]}, "has the target 'http://npu-01:8082'"),
        ({"targets": ["npu-01:8082"], "labels": {"my host": "x"}}, "has the label my host"),
        ({"targets": ["npu-01:8082"], "labels": {"__access__": "x"}}, "has the label __access__"),
    ],
)
def test_target_invalid_in_prometheus_is_named_with_its_place(group, said):
    good = {"targets": ["a:1"], "labels": {"__scheme__": "https", "__metrics_path__": "/gpu", "rack": 7}}
    plan = scrape_plan([], {}, extra=[good, group])
    (problem,) = plan["problems"]
    assert problem.startswith("gpu_monitoring_extra_targets[1] ") and said in problem
    expected = {"__scheme__": "https", "__metrics_path__": "/gpu", "rack": "7"}
    assert expected.items() <= plan["targets"][0]["labels"].items()


def test_first_matching_price_is_used():
    rules = price_rules([{"model": "H100*", "price": 2.4}, {"model": "*", "price": 1}])
    assert [rule["record"] for rule in rules] == ["gpu:price_per_hour"] * 2
    matchers = [re.findall(r'model(=~|!~)"((?:[^"\\]|\\.)*)"', rule["expr"]) for rule in rules]

    def price(model):
        found = []
        for rule, conditions in zip(rules, matchers):
            holds = [
                bool(re.fullmatch(pattern.replace("\\\\", "\\"), model)) == (sign == "=~")
                for sign, pattern in conditions
            ]
            if all(holds):
                found.append(float(rule["expr"].rpartition(" + ")[2]))
        return found

    assert price("NVIDIA H100 80GB HBM3") == [2.4]
    assert price("H100 PCIe") == [2.4]
    assert price("NVIDIA A100-SXM4-40GB") == [1.0]
    assert price("GH100") == [1.0]


def test_glob_is_escaped_in_rules():
    assert re.fullmatch(glob_pattern("RTX 6000 (Ada) v1.0?"), "NVIDIA RTX 6000 (Ada) v1.0b")
    assert not re.fullmatch(glob_pattern("v1.0"), "v1x0")


@pytest.mark.parametrize(
    "line", [{"model": "H100*"}, {"price": 1}, {"model": "*", "price": "cheap"}, {"model": "*", "price": -1}]
)
def test_invalid_price_is_refused_with_its_place(line):
    with pytest.raises(AnsibleFilterError, match=r"^gpu_monitoring_prices\[1\]"):
        price_rules([{"model": "A*", "price": 1}, line])


DROP_IN = {"service": "prometheus", "files": ["/drop-in"], "handler": "restart", "since": "ActiveEnterTimestamp"}
ALERTS = {"service": "am.service", "files": ["/am"], "handler": "reload", "since": "StateChangeTimestamp"}
FILES = {"service": "prometheus", "files": ["/rules", "/none"], "handler": "tell", "since": "loaded"}


def shown(start="@1700000100", needs="no", change="@1700000200"):
    """Return the output of systemctl for two units, in the format of systemd 252."""
    return f"""Id=prometheus.service
NeedDaemonReload={needs}
ActiveEnterTimestamp={start}
StateChangeTimestamp={start}

Id=am.service
NeedDaemonReload={needs}
ActiveEnterTimestamp=@1700000000
StateChangeTimestamp={change}
"""


@pytest.mark.parametrize(
    ("said", "times", "loaded", "overdue"),
    [
        (shown(), {"/drop-in": "1700000099.5", "/am": "1700000150.0", "/rules": "1700000000.9"}, "", []),
        # These files have the same second. The run that wrote them has already reported the problem.
        (shown(), {"/drop-in": "1700000100.9", "/am": "1700000200.9"}, "", []),
        (shown(), {"/drop-in": "1700000101.0"}, "", ["restart"]),
        (shown(), {"/am": "1700000201.0"}, "", ["reload"]),
        (shown(needs="yes"), {}, "", ["restart"]),
        # This service was never started. Its start will read the current files.
        (shown(start=""), {"/drop-in": "1700000101.0"}, "", []),
        ("", {"/drop-in": "1700000101.0", "/am": "1700000201.0"}, "", []),
        # In seconds, 2023-11-14T22:13:20Z is 1700000000.
        ("", {"/rules": "1700000000.9"}, "2023-11-14T22:13:20Z", []),
        ("", {"/rules": "1700000001.0"}, "2023-11-14T22:13:20Z", ["tell"]),
        ("", {"/rules": "1700000001.0"}, "2023-11-14T22:13:20.123+00:00", ["tell"]),
        ("", {"/rules": "1700000001.0"}, "yesterday", []),
    ],
)
def test_services_with_newer_files_are_overdue(said, times, loaded, overdue):
    found = overdue_services([DROP_IN, ALERTS, FILES], shown=said, times=times, loaded=loaded)
    assert [entry["handler"] for entry in found] == overdue


def tasks(name):
    return yaml.safe_load((ROLE / "tasks" / name).read_text(encoding="utf-8"))


def writing(task):
    return task.get("ansible.builtin.copy") or task["ansible.builtin.template"]


def test_files_with_secrets_are_private_and_not_shown():
    for path in ("gpu_monitoring__secrets", "gpu_monitoring__prometheus }}", "gpu_monitoring__web }}"):
        (task,) = (one for one in tasks("files.yml") if path in writing(one)["dest"])
        written = writing(task)
        assert (written["owner"], written["mode"]) == ("root", "0640")
        assert "gpu_monitoring_group" in written["group"]
        assert task.get("no_log") is True or task.get("diff") is False


def test_old_passwords_are_removed_after_prometheus_reloads():
    names = [task["name"] for task in tasks("present.yml")]
    assert names.index("Remove stale passwords") > names.index("Apply the changes to Prometheus")
