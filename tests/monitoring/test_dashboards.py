# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the dashboards of the role gpu_monitoring, and all their queries.

The queries run on a real Prometheus, with three hours of recorded series for the hosts of dashboard_fleet.py. The tests
do not use Grafana, so they replace its variables themselves.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time

import pytest
import yaml

from tests.monitoring import dashboard_fleet
from tests.monitoring.prometheus_process import running
from tests.monitoring.rule_files import RULES, TOOLS, rules_of

ROLE = RULES[0].parents[2]
ROLL_UPS = ROLE / "files" / "rollups.yml"
FILES = sorted((ROLE / "files" / "dashboards").glob("*.json"))
BOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FILES}
RANGE = 3600
VALUES = {
    "$__range_s": str(RANGE),
    "$__range": f"{RANGE}s",
    "$__rate_interval": "5m",
    "$__interval": "1m",
    "$cluster": ".*",
    "$tenant": ".*",
    "$gpu": ".*",
}


def panels(board):
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


PANELS = [
    pytest.param(name, panel, id=f"{name}-{panel['title']}")
    for name, board in BOARDS.items()
    for panel in panels(board)
]


def one_host(board):
    (host,) = (variable for variable in board["templating"]["list"] if variable["name"] == "host")
    return not host["multi"]


def put_in(board, text):
    """Return the query as Grafana would send it.

    All hosts are selected. For a dashboard of a single host, only the first host is selected.
    """
    hosts = dashboard_fleet.HOSTS[:1] if one_host(board) else dashboard_fleet.HOSTS
    for name, value in {**VALUES, "$host": "(%s)" % "|".join(hosts) if len(hosts) > 1 else hosts[0]}.items():
        text = text.replace(name, value)
    assert "$" not in text, text
    return text


class History:
    """Query a Prometheus at the end of the history."""

    def __init__(self, prometheus, end):
        self.get, self.end = prometheus.get, end

    def now(self, query):
        return self.get("query", query=query, time=self.end)["result"]

    def over_time(self, query):
        return self.get("query_range", query=query, start=self.end - RANGE, end=self.end, step=60)["result"]

    def value(self, query):
        (one,) = self.now(query)
        return float(one["value"][1])


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory):
    place = tmp_path_factory.mktemp("prometheus")
    end = int(time.time()) // 60 * 60
    (place / "history").write_text(dashboard_fleet.openmetrics(end), encoding="utf-8")
    made = subprocess.run(
        [TOOLS / "promtool", "tsdb", "create-blocks-from", "openmetrics", place / "history", place / "data"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (place / "prometheus.yml").write_text("{}\n")
    with running(place, place / "prometheus.yml") as process:
        yield History(process, end)


def test_there_are_the_five_dashboards_with_links_between_them():
    assert [board["title"] for board in BOARDS.values()] == [
        "GPU fleet",
        "GPU host",
        "GPU and MIG instances",
        "GPU tenants",
        "GPU costs",
    ]
    uids = {board["uid"] for board in BOARDS.values()}
    assert len(uids) == len(BOARDS)
    for path in FILES:
        for uid in re.findall(r"/d/([\w-]+)", path.read_text(encoding="utf-8")):
            assert uid in uids


def test_the_files_are_what_their_source_says():
    made = subprocess.run(
        [sys.executable, ROLE / "dashboards" / "build.py", "--check"], capture_output=True, text=True, timeout=120
    )
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.mark.parametrize("name", BOARDS)
def test_each_dashboard_can_be_pointed_at_a_prometheus_and_a_part_of_the_fleet(name):
    variables = [variable["name"] for variable in BOARDS[name]["templating"]["list"]]
    assert variables[:3] == ["datasource", "cluster", "host"]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([p.get("targets") for p in panels(BOARDS[name])])))
    assert {each for each in used if not each.startswith("__")} <= set(variables)


@pytest.mark.parametrize(("name", "panel"), PANELS)
def test_a_panel_says_what_it_shows_in_which_unit(name, panel):
    assert panel["title"] and panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    assert panel["datasource"]["uid"] == "${datasource}"
    assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    assert panel["gridPos"]["w"] >= 4, "too narrow to be read"


def test_only_series_are_asked_for_that_rules_write():
    written = {rule.name for rule in rules_of([*RULES, ROLL_UPS])} | {"gpu:price_per_hour", "ALERTS", "up"}
    for board in BOARDS.values():
        for panel in panels(board):
            for target in panel["targets"]:
                expression = target["expr"]
                asked = set(re.findall(r"([A-Za-z_:][\w:]*)\s*\{", expression))
                for names in re.findall(r'__name__=~"([^"]*)"', expression):
                    asked.update(names.split("|"))
                asked.update(re.findall(r"gpu:\w[\w:]*", expression))
                assert asked and asked <= written, (panel["title"], asked - written)


@pytest.mark.parametrize(("name", "panel"), PANELS)
def test_each_query_returns_data(prometheus, name, panel):
    for target in panel["targets"]:
        query = put_in(BOARDS[name], target["expr"])
        found = prometheus.now(query) if target.get("instant") else prometheus.over_time(query)
        assert found, f"nothing comes of {query}"
        numbers = [value for one in found for _, value in one.get("values", [one.get("value")])]
        assert all(math.isfinite(float(value)) for value in numbers), query
        labels = {label for one in found for label in one["metric"]}
        assert set(re.findall(r"{{(\w+)}}", target.get("legendFormat") or "")) <= labels, query


@pytest.mark.parametrize(("name", "panel"), [one for one in PANELS if one.values[1]["type"] == "table"])
def test_the_columns_of_a_table_are_in_its_data(prometheus, name, panel):
    fields = set()
    several = len(panel["targets"]) > 1
    for target in panel["targets"]:
        fields.add("Value #" + target["refId"] if several else "Value")
        fields.update(*(one["metric"] for one in prometheus.now(put_in(BOARDS[name], target["expr"]))))
    (organize,) = (one["options"] for one in panel["transformations"] if one["id"] == "organize")
    assert set(organize["indexByName"]) <= fields
    headers = set(organize["renameByName"].values())
    overridden = {one["matcher"]["options"] for one in panel["fieldConfig"]["overrides"]}
    assert overridden == headers, "each column has a unit of its own"
    # A link can use a field only if the field is a column.
    assert set(re.findall(r"__data\.fields\.(\w+)", json.dumps(panel["fieldConfig"]))) <= headers


def values_of(prometheus, name, variable, **chosen):
    """Return the values that Grafana would offer for a dashboard variable."""
    (found,) = (one for one in BOARDS[name]["templating"]["list"] if one["name"] == variable)
    query = found["query"] if isinstance(found["query"], str) else found["query"]["query"]
    for other, value in chosen.items():
        query = query.replace("$" + other, value)
    kind, inside = re.fullmatch(r"(label_values|query_result)\((.*)\)", query).groups()
    if kind == "label_values":
        series, label = inside.rsplit(", ", 1)
        match = {"match[]": put_in(BOARDS[name], series)}
        return prometheus.get(f"label/{label}/values", **match, start=prometheus.end - RANGE, end=prometheus.end)
    # Grafana converts each series to text, and applies the variable's pattern to the text.
    found_now = [one["metric"] for one in prometheus.now(put_in(BOARDS[name], inside))]
    texts = ["{%s} 1" % ",".join('%s="%s"' % label for label in metric.items()) for metric in found_now]
    pattern = re.compile(found["regex"].strip("/"))
    return sorted({match.group(1) for match in map(pattern.search, texts) if match})


@pytest.mark.parametrize("name", BOARDS)
def test_variables_have_values(prometheus, name):
    for variable in BOARDS[name]["templating"]["list"]:
        if variable["type"] == "query":
            assert values_of(prometheus, name, variable["name"]), variable["query"]


@pytest.mark.parametrize("name", BOARDS)
def test_hosts_are_found_whatever_their_job_is_called(prometheus, name):
    """Offer hosts with and without a cluster, and a host that is down.

    The host that is down has reported its GPU within the displayed time range.
    """
    assert values_of(prometheus, name, "host") == dashboard_fleet.HOSTS
    assert values_of(prometheus, name, "cluster") == ["a"]
    assert values_of(prometheus, name, "host", cluster="a") == ["node-1"]
    assert values_of(prometheus, name, "host", cluster="b") == []


@pytest.mark.parametrize(("host", "answers"), [("node-1", 1), ("node-2", 0), ("node-3", 0)])
def test_an_exporter_that_is_down_is_seen_whatever_its_job_is_called(prometheus, host, answers):
    (panel,) = (each for each in panels(BOARDS["openfleet-gpu-2-host"]) if each["title"] == "Exporter")
    assert prometheus.value(panel["targets"][0]["expr"].replace("$host", host)) == answers


def figure(prometheus, name, title):
    (panel,) = (each for each in panels(BOARDS[name]) if (each["title"], each["type"]) == (title, "stat"))
    return prometheus.value(put_in(BOARDS[name], panel["targets"][0]["expr"]))


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("GPUs", 10),
        ("Busy", 4),
        ("Held, idle", 3),
        ("Free", 3),
        ("Held, quiet for 48 h", 2),
        ("Their cost per hour", pytest.approx(2.4 + 0.2)),
        ("Contradicting metrics", 1),
        ("Alerts", 2),
        ("Exporters down", 2),
        ("Lost", 1),
        ("Throttled by heat", 2),
        ("Throttled by power", 3),
        ("Layout drift", 1),
    ],
)
def test_the_fleets_figures_are_those_counted_by_hand(prometheus, title, expected):
    """Compare displayed figures with the table in dashboard_fleet.py."""
    assert figure(prometheus, "openfleet-gpu-1-fleet", title) == expected


def table(prometheus, name, title, label, column=0):
    """Return a table's column, or the last values of lines, keyed by one label."""
    (panel,) = (each for each in panels(BOARDS[name]) if each["title"] == title)
    found = prometheus.now(put_in(BOARDS[name], panel["targets"][column]["expr"]))
    values = {one["metric"][label]: float(one["value"][1]) for one in found}
    assert len(values) == len(found), "two rows for one"
    return values


#: The number of GPUs of each workload. `train` uses two GPUs, one of which two exporters report. `web-1` and `web-2`
#: share a GPU that both exporters report.
DEVICES_OF = {"train": 2, "serve": 1, "web-1": 1, "web-2": 1}
BUSY_OF = {"train": (0.9 + 0.5) / 2, "serve": 0.8, "web-1": 0.6, "web-2": 0.6}
#: Memory in use in GiB. `train` uses 47 % and 27 % of 80, `serve` 42 % of 10, and the others share 32 % of 80.
USED_ON = {"train": 80 * 0.47 + 80 * 0.27, "serve": 10 * 0.42, "web-1": 80 * 0.32, "web-2": 80 * 0.32}


def test_jobs_and_pods_have_each_device_once(prometheus):
    fleet = [table(prometheus, "openfleet-gpu-1-fleet", "Jobs and pods", "workload", column) for column in range(3)]
    assert fleet[0] == DEVICES_OF
    assert fleet[1] == pytest.approx(BUSY_OF)
    assert {of: used / dashboard_fleet.GIB for of, used in fleet[2].items()} == pytest.approx(USED_ON)
    tenants = "openfleet-gpu-4-tenant"
    assert table(prometheus, tenants, "Busy", "workload") == pytest.approx(BUSY_OF)
    used = table(prometheus, tenants, "GPU memory used by jobs and pods", "workload")
    assert used == fleet[2]


def test_those_who_share_a_gpu_share_its_price(prometheus):
    """Divide the price of a shared GPU between its workloads.

    `train` has two H100s at 2.40, `serve` 10 of 40 GB of an A100 at 1.00, and `web-1` and `web-2` half an H100 each.
    """
    found = table(prometheus, "openfleet-gpu-5-cost", "Cost of jobs and pods per hour", "workload")
    assert found == pytest.approx({"train": 4.8, "serve": 0.25, "web-1": 1.2, "web-2": 1.2})


def test_waits_and_shares_of_colocated_tenants(prometheus):
    def now(title):
        (panel,) = (each for each in panels(BOARDS["openfleet-gpu-4-tenant"]) if each["title"] == title)
        found = prometheus.now(put_in(BOARDS["openfleet-gpu-4-tenant"], panel["targets"][0]["expr"]))
        return {one["metric"]["tenant"]: float(one["value"][1]) for one in found}

    assert now("GPU time") == pytest.approx({"a": 0.25, "b": 0.5}, rel=0.1)
    # A tenth of the launches waits for 10 to 20 ms, so the 99th percentile is at nine tenths of this range.
    assert now("Online wait") == pytest.approx({"a": 0.019}, rel=0.01)
    assert now("Turns given up per minute") == pytest.approx({"b": 2}, rel=0.2)


def test_a_second_exporter_doubles_no_tenant_and_no_holder(prometheus):
    board = "openfleet-gpu-4-tenant"
    assert figure(prometheus, board, "Tenants") == 2
    assert figure(prometheus, board, "Memory quota") == 2 * 8 * dashboard_fleet.GIB
    assert figure(prometheus, board, "Memory used") == (7 + 1) * dashboard_fleet.GIB
    # For an hour, each of the two tenants gets one refusal in five minutes.
    assert figure(prometheus, board, "Denied") == pytest.approx(2 * 12, abs=2.5)
    holders = {("0", "process"): 1, ("1", "container"): 1, ("4", "slurm"): 1, ("4", "process"): 1}
    holders |= {("5", "process"): 2, ("6", "process"): 2, ("7", "container"): 1}
    for board in ("openfleet-gpu-1-fleet", "openfleet-gpu-2-host"):
        (panel,) = (each for each in panels(BOARDS[board]) if each["title"] == "Holders")
        found = prometheus.now(put_in(BOARDS[board], panel["targets"][0]["expr"]))
        held = {(one["metric"]["gpu_index"], one["metric"]["kind"]): float(one["value"][1]) for one in found}
        assert held == holders


def test_leases_are_counted_once(prometheus):
    board = "openfleet-gpu-4-tenant"
    assert figure(prometheus, board, "Leases") == 1
    assert figure(prometheus, board, "Waiting") == 1
    assert figure(prometheus, board, "Pool leased") == pytest.approx(16 / 64)
    assert table(prometheus, board, "Current leases", "account") == {"carol": 1795003600000}


def test_idle_money_is_what_idle_devices_cost(prometheus):
    """Add the prices of idle devices.

    Three whole H100s at 2.40 count: an idle H100 with a holder, a free H100, and an H100 with an unknown holder. On the
    A100 at 1.00, idle instances with 20 and 10 of 40 GB count. On the A100-SXM4-80GB at 1.60, one instance with 10 of
    80 GB counts.
    """
    board = "openfleet-gpu-5-cost"
    assert figure(prometheus, board, "Idle cost per hour") == pytest.approx(3 * 2.4 + 0.5 + 0.25 + 0.2)
    assert figure(prometheus, board, "Held idle cost per hour") == pytest.approx(2.4 + 0.5 + 0.2)
    assert figure(prometheus, board, "Fleet cost per hour") == pytest.approx(7 * 2.4 + 1.0 + 1.6)
    # The cost has been constant for the whole hour.
    assert figure(prometheus, board, "Idle cost in the time range") == pytest.approx(
        3 * 2.4 + 0.5 + 0.25 + 0.2, rel=0.3
    )


def test_what_is_not_carved_is_charged_to_nobody_and_shown(prometheus):
    """Show the price of memory that belongs to no instance as unallocated.

    On the A100-SXM4-80GB, this is 70 of 80 GB. The memory size of the other A100 is unknown, so its instances share its
    full price.
    """
    board = "openfleet-gpu-5-cost"
    (panel,) = (each for each in panels(BOARDS[board]) if each["title"] == "Costs per hour")
    lines = {one["legendFormat"]: prometheus.value(put_in(BOARDS[board], one["expr"])) for one in panel["targets"]}
    assert lines == pytest.approx(
        {
            "busy": 3 * 2.4 + 0.25,
            "held, idle": 2.4 + 0.5 + 0.2,
            "free": 2.4 + 0.25,
            "idle, holder unknown": 2.4,
            "not carved": 1.4,
        }
    )
    # The lines add up to the price of the fleet without the lost H100.
    assert sum(lines.values()) == pytest.approx(figure(prometheus, board, "Fleet cost per hour") - 2.4)
    hosts = table(prometheus, board, "Idle cost by host in the time range", "host", 2)
    assert hosts == pytest.approx({"node-1": 1.4}, rel=0.3)


def test_alerts_of_a_host_that_is_not_chosen_are_left_out(prometheus):
    (panel,) = (each for each in panels(BOARDS["openfleet-gpu-2-host"]) if each["title"] == "Firing alerts")
    found = prometheus.now(panel["targets"][0]["expr"].replace("$host", "node-2"))
    assert {one["metric"]["alertname"] for one in found} == {"GpuLost"}


def test_the_role_puts_in_the_currency():
    """Check that no other text equals the currency, which the role replaces."""
    text = "".join(path.read_text(encoding="utf-8") for path in FILES)
    assert set(re.findall(r"currency\w*", text)) == {"currencyUSD"}
    tasks = yaml.safe_load((ROLE / "tasks" / "files.yml").read_text(encoding="utf-8"))
    (task,) = (task for task in tasks if task["name"] == "Write the dashboards")
    assert "replace('currencyUSD', gpu_monitoring__currency)" in task["vars"]["content"]
