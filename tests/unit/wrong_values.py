# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""List invalid values of each variable of the collection."""

from __future__ import annotations

from ansible_collections.openfleet.gpu.plugins.plugin_utils.variables import known

VARIABLES = known.variables()
#: These values are invalid for any variable of the type.
WRONG = {
    "int": ["soon", -1, True, 1.5, None, [], 10**400, "9" * 400, "²"],
    "float": ["soon", -1, True, None, [], {}, "9" * 400],
    "bool": ["maybe", 2, None, [], {}],
    "str": [True, None, [], {"key": "value"}],
    "path": [False, None, ["/a", "/b"], {}],
    "list": [{}, 7, None, True],
    "dict": ["text", [], 7, None],
}
#: These values are invalid for any variable without a type.
WRONG_RAW = {
    "gpu_layout": [{}, "all", None, [{"gpus": [0], "sharing": "shraed"}]],
    "gpu_site_tolerate": ["many", -1, "101%", 1.5, True, None, [], {}, 10**5000, "²"],
}
WRONG_ELEMENTS = {"str": [{}], "dict": ["text"], "raw": [[{"no": "such"}], True]}


def wrong_values(name):
    option = VARIABLES[name].option
    kind = option.get("type", "str")
    values = WRONG_RAW[name] if kind == "raw" else list(WRONG[kind])
    if kind == "list":
        values += [[value] for value in WRONG_ELEMENTS[option.get("elements", "raw")]]
    if option.get("choices"):
        values.append(["no-such"] if kind == "list" else "no-such")
    if kind == "list" and (VARIABLES[name].by_role or option.get("elements") != "str"):
        values.append("one,two")
    # For this variable, a mapping is valid too. It may be a notification method with keys that only its program knows.
    return [value for value in values if not (name == "gpu_rightsize_reclaim_tell" and value == [{"no": "such"}])]
