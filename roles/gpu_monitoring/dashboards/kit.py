# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build panels with Grafana's own library.

Every function requires a title, a description, a unit and queries, so no panel can lack one of these.
"""

from __future__ import annotations

import queries as q
from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import bargauge as bargauge_model
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
#: Each colour has the same meaning on all dashboards.
GREEN, BLUE, ORANGE, RED, PURPLE, GREY = "green", "blue", "orange", "red", "purple", "#8e8e8e"
PER_DEVICE = "{{host}} GPU {{gpu_index}} {{mig_profile}} {{mig_instance}}"
ON_HOST = "GPU {{gpu_index}} {{mig_profile}} {{mig_instance}}"


def query(expression, legend="", now=False, letter="A", columns=False):
    made = prometheus.Dataquery().expr(expression).ref_id(letter).datasource(SOURCE).legend_format(legend)
    if columns:
        made.format(PromQueryFormat.TABLE)
    return made.instant() if now else made.range()


def steps(*pairs):
    """Return thresholds from pairs of a lower bound and a colour.

    Example: (None, GREEN), (1, RED).
    """
    return (
        dashboard.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=color) for value, color in pairs])
    )


def _describe(panel, title, description, unit, span, height):
    return panel.title(title).description(description).unit(unit).span(span).height(height).datasource(SOURCE)


def number(
    title, description, unit, expression, colors=((None, BLUE),), span=4, height=4, decimals=None, none="no data"
):
    """Return a panel that shows one value, and the value's history behind it."""
    made = _describe(stat.Panel(), title, description, unit, span, height)
    made.with_target(query(expression)).thresholds(steps(*colors)).no_value(none)
    made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    made.graph_mode(kinds.BigValueGraphMode.AREA).color_mode(kinds.BigValueColorMode.VALUE)
    return made if decimals is None else made.decimals(decimals)


def total(title, description, unit, expression, colors=((None, BLUE),), span=4, height=4):
    """Return a panel that shows one value for the whole time range.

    The value comes from an instant query.
    """
    made = _describe(stat.Panel(), title, description, unit, span, height)
    made.with_target(query(expression, now=True)).thresholds(steps(*colors)).no_value("no data")
    made.graph_mode(kinds.BigValueGraphMode.NONE).color_mode(kinds.BigValueColorMode.VALUE)
    return made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def lines(title, description, unit, queries, span=12, height=8, stacked=False, most=None, colors=None):
    """Return a time series panel. `queries` are pairs of expression and legend."""
    made = _describe(timeseries.Panel(), title, description, unit, span, height).min(0)
    for letter, (expression, legend) in zip("ABCDEFGH", queries):
        made.with_target(query(expression, legend, letter=letter))
    if most is not None:
        made.max(most)
    if stacked:
        made.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL)).fill_opacity(60)
    for name, color in (colors or {}).items():
        fixed = {"mode": "fixed", "fixedColor": color}
        made.override_by_name(name, [models.DynamicConfigValue(id_val="color", value=fixed)])
    # Show gaps in the data as gaps.
    made.line_width(1).show_points(kinds.VisibilityMode.NEVER).span_nulls(False)
    made.tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
    legend = (
        common.VizLegendOptions().display_mode(kinds.LegendDisplayMode.LIST).placement(kinds.LegendPlacement.BOTTOM)
    )
    return made.legend(legend.show_legend(True))


def bars(title, description, unit, expression, legend, span=12, height=8, most=None, colors=((None, BLUE),)):
    """Return a panel with a bar for each series' current value."""
    made = _describe(bargauge.Panel(), title, description, unit, span, height).min(0)
    made.with_target(query(expression, legend, now=True)).thresholds(steps(*colors))
    made.orientation(kinds.VizOrientation.HORIZONTAL).display_mode(kinds.BarGaugeDisplayMode.BASIC)
    made.value_mode(kinds.BarGaugeValueMode.TEXT).name_placement(bargauge_model.common.BarGaugeNamePlacement.LEFT)
    made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    return made if most is None else made.max(most)


def states(title, description, expression, legend, span=24, height=8, words=(("0", "no", GREEN), ("1", "yes", RED))):
    """Return a state timeline for series of 0 and 1."""
    made = _describe(statetimeline.Panel(), title, description, "none", span, height)
    made.with_target(query(expression, legend)).show_value(kinds.VisibilityMode.NEVER).merge_values(True)
    mapping = {
        value: models.ValueMappingResult(text=text, color=color, index=at)
        for at, (value, text, color) in enumerate(words)
    }
    return made.mappings([models.ValueMap(options=mapping)]).row_height(0.8)


def rows(title, description, unit, queries, columns, span=24, height=8, none="nothing now", sort=None):
    """Return a table of the results of `queries`.

    `columns` are in order. A column is (field, header, unit) or (field, header, unit, link URL). A field is a label or
    `Value`. With several queries, the values are `Value #A`, `Value #B` and so on.
    """
    made = _describe(table.Panel(), title, description, unit, span, height).no_value(none).filterable(True)
    for letter, expression in zip("ABCDEFGH", queries):
        made.with_target(query(expression, now=True, letter=letter, columns=True))
    if len(queries) > 1:
        made.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    order = {field: at for at, (field, *_unused) in enumerate(columns)}
    names = {field: header for field, header, *_unused in columns}
    # Grafana adds the time and further labels. Keep only the wanted fields.
    keep = {"include": {"names": list(order)}}
    made.with_transformation(models.DataTransformerConfig(id_val="filterFieldsByName", options=keep))
    organize = {"indexByName": order, "renameByName": names, "excludeByName": {}}
    made.with_transformation(models.DataTransformerConfig(id_val="organize", options=organize))
    for _unused, header, column_unit, *address in columns:
        properties = [models.DynamicConfigValue(id_val="unit", value=column_unit)]
        if address:
            link = [{"title": "Open", "url": address[0], "targetBlank": False}]
            properties.append(models.DynamicConfigValue(id_val="links", value=link))
        made.override_by_name(header, properties)
    if sort:
        made.sort_by([common.TableSortByFieldState(sort).desc(True)])
    return made


def section(title):
    return dashboard.Row(title)


def _label_query(label, expression):
    """Return a variable's query and pattern for a label of an expression.

    The variable cannot use label_values, which accepts only single series.
    """
    return f"query_result({expression})", f'/\\b{label}="([^"]+)"/'


def _variable(name, label, expression, many, all_value=None, pattern=""):
    made = dashboard.QueryVariable(name).label(label).query(expression).datasource(SOURCE)
    made.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(models.VariableSort.NATURAL_ASC).multi(many)
    made.include_all(many).regex(pattern)
    if many:
        made.current(models.VariableOption(text="All", value="$__all", selected=True))
    return made if all_value is None else made.all_value(all_value)


def board(uid, title, description, *, one_host=False, gpu=False, tenant=False, span="now-6h"):
    """Return an empty dashboard with variables and links.

    The links lead to the other dashboards and keep the variables.
    """
    made = dashboard.Dashboard(title).uid("openfleet-gpu-" + uid).description(description).tags(["openfleet-gpu"])
    made.time(span, "now").refresh("1m").timezone("browser").tooltip(models.DashboardCursorSync.CROSSHAIR).editable()
    made.link(
        dashboard.DashboardLink("GPU dashboards")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags(["openfleet-gpu"])
        .include_vars(True)
        .keep_time(True)
    )
    made.with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    values, pattern = _label_query("cluster", q.CLUSTERS)
    made.with_variable(_variable("cluster", "Cluster", values, many=True, all_value=".*", pattern=pattern))
    values, pattern = _label_query("host", q.HOSTS)
    made.with_variable(_variable("host", "Host", values, many=not one_host, pattern=pattern))
    if gpu:
        values = 'label_values(gpu:info{host=~"$host"}, gpu_index)'
        made.with_variable(_variable("gpu", "GPU", values, many=True, all_value=".*"))
    if tenant:
        values = 'label_values(gpu:tenant_memory_limit_bytes{host=~"$host"}, tenant)'
        made.with_variable(_variable("tenant", "Tenant", values, many=True, all_value=".*"))
    return made


def fill(made, panels):
    for panel in panels:
        if isinstance(panel, dashboard.Row):
            made.with_row(panel)
        else:
            made.with_panel(panel)
    return made.build()
