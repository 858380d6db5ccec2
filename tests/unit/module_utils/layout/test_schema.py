# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that the JSON schema of gpu_layout agrees with the parser.

For an invalid example, both must report the same location. A random layout must be accepted by both or refused by both.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import LayoutError
from ansible_collections.openfleet.gpu.plugins.module_utils.layout import leases as layout_leases
from ansible_collections.openfleet.gpu.plugins.module_utils.layout import types
from ansible_collections.openfleet.gpu.plugins.module_utils.layout.parse import entry_keys
from ansible_collections.openfleet.gpu.plugins.module_utils.layout.types import LAYOUT_VERSION
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques import forms
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import layout_to_data, parse_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mig import parse as mig_parse
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import model as mps_model
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.mps import parse as mps_parse
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.time_slicing import model as time_slicing
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.time_slicing import parse as time_slicing_parse
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import model as vgpu_model
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import parse as vgpu_parse
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.vgpu import part as vgpu_part
from tests.thorough import draws
from tests.unit import yaml_files

REPOSITORY = Path(__file__).parents[4]
DATA = Path(__file__).parents[2] / "data"
GOOD = yaml_files.read(DATA / "good_layouts.yml")
BAD = yaml_files.read(DATA / "bad_layouts.yml")
SCHEMA = json.loads((REPOSITORY / "docs" / "gpu_layout.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def schema_errors(data):
    """Return the locations of all schema errors and of their inner errors.

    A location is a tuple such as ('gpu_layout', 0, 'mig').
    """
    waiting = list(VALIDATOR.iter_errors({"gpu_layout": data}))
    paths = []
    while waiting:
        error = waiting.pop()
        paths.append(tuple(error.absolute_path))
        waiting.extend(error.context)
    return paths


def path_of(where):
    """Convert a location such as gpu_layout[0].mig to ('gpu_layout', 0, 'mig')."""
    steps = re.findall(r"\[(\d+)\]|(\w+)", where)
    return tuple(int(number) if number else word for number, word in steps)


def test_schema_is_valid():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"].endswith(":%d" % LAYOUT_VERSION)


def test_other_variables_are_ignored():
    assert VALIDATOR.is_valid({"ntp_servers": ["a"], "gpu_layout": []})


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case["name"])
def test_schema_accepts_what_the_parser_accepts(case):
    assert schema_errors(case["layout"]) == []


@pytest.mark.parametrize("case", [case for case in BAD if "beyond_schema" not in case], ids=lambda case: case["name"])
def test_schema_rejects_where_the_parser_does(case):
    """The schema's error is at the parser's location, at its container, or at a key in the value."""
    found = schema_errors(case["layout"])
    for where in case["finds"]:
        path = path_of(where)
        assert any(each in (path, path[:-1]) or each[:-1] == path for each in found), (where, found)


@pytest.mark.parametrize("case", [case for case in BAD if "beyond_schema" in case], ids=lambda case: case["name"])
def test_problems_beyond_the_schema_are_accepted_by_it(case):
    assert schema_errors(case["layout"]) == []


def keys_of(definition):
    return set(SCHEMA["$defs"][definition]["properties"])


def test_schema_and_parser_have_the_same_choices():
    assert keys_of("entry") == set(entry_keys(forms.FORMS))
    assert keys_of("mig_instance") == set(mig_parse.KEYS).union(form.key for form in forms.INSIDE)
    assert keys_of("mps") == set(mps_parse.KEYS)
    assert set(mps_parse.KEYS) - set(mps_parse.KEYS_INSIDE_MIG) == {"daemon_per"}
    assert keys_of("time_slicing") == set(time_slicing_parse.KEYS)
    assert keys_of("vgpu") == set(vgpu_parse.KEYS)
    assert keys_of("tenant") == set(vgpu_parse._TENANT)
    assert keys_of("leases") == set(layout_leases.KEYS)
    assert SCHEMA["$defs"]["leases"]["properties"]["by"]["enum"] == list(layout_leases.ALLOCATORS)
    assert SCHEMA["$defs"]["leases"]["properties"]["hours"]["default"] == layout_leases.HOURS
    assert SCHEMA["$defs"]["leases"]["properties"]["count"]["default"] == layout_leases.COUNT
    assert SCHEMA["$defs"]["entry"]["properties"]["sharing"]["enum"] == list(forms.SHARINGS)
    assert SCHEMA["$defs"]["time_slicing"]["properties"]["slice"]["enum"] == list(time_slicing.TIME_SLICES)
    assert SCHEMA["$defs"]["mps"]["properties"]["daemon_per"]["enum"] == list(mps_model.DAEMONS)
    assert SCHEMA["$defs"]["vgpu"]["properties"]["policy"]["enum"] == list(vgpu_model.POLICIES)
    assert SCHEMA["$defs"]["vgpu"]["properties"]["provider"]["enum"] == list(vgpu_model.PROVIDERS)


# -- arbitrary layouts ------------------------------------------------------------------------------------------------

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", fullmatch=True)
sizes_bytes = st.integers(1, 4096).map(lambda mib: mib * 2**20)


@st.composite
def selectors(draw):
    """Generate selectors of which no two obviously select the same GPU."""
    if draw(st.integers(0, 9)) == 0:
        return (types.Selector("all"),)
    one = st.one_of(
        st.integers(0, 31).map(lambda index: types.Selector("index", index)),
        st.uuids().map(lambda uuid: types.Selector("uuid", "GPU-%s" % uuid)),
        st.integers(0, 255).map(lambda bus: types.Selector("pci", "0000:%02x:00.0" % bus)),
        st.sampled_from(["H100*", "A100-SXM4-80GB", "*"]).map(lambda glob: types.Selector("model", glob)),
    )
    return tuple(draw(st.lists(one, min_size=1, max_size=4, unique=True)))


@st.composite
def mps(draw):
    clients = draw(st.integers(1, 60))
    percent = draw(st.integers(1, 100))
    return mps_model.Mps(
        draw(names),
        clients,
        percent,
        draw(st.none() | sizes_bytes),
        oversubscribe=clients * percent > 100 or draw(st.booleans()),
    )


@st.composite
def mig_instances(draw):
    slices, memory_gb = draw(st.integers(1, 7)), draw(st.integers(1, 180))
    tail = "%dg.%dgb%s" % (slices, memory_gb, draw(st.sampled_from(["", "+me", "+me.all", "+gfx", "-me"])))
    parts = []
    while draw(st.booleans()) and sum(parts) < slices:
        parts.append(draw(st.integers(1, slices - sum(parts))))
    if parts == [slices]:
        parts = []
    count = draw(st.integers(1, 7))
    return types.MigInstance(
        tail,
        count,
        draw(st.integers(0, 11)) if count == 1 and draw(st.booleans()) else None,
        tuple(tail if part == slices else "%dc.%s" % (part, tail) for part in parts),
        *draw(st.just((None, None)) | mps().map(lambda part: ("mps", part))),
    )


@st.composite
def vgpus(draw, chosen):
    """Generate tenants that fit on the selected GPUs.

    Tenants that are pinned to a GPU share the percentage of this GPU. Other tenants use only the percentage that is
    free on every GPU.
    """
    countable = all(selector.names_one_gpu for selector in chosen)
    tenants = []
    for name in draw(st.lists(names, min_size=1, max_size=4, unique=True)):
        pin = draw(st.sampled_from(chosen)) if countable and draw(st.booleans()) else None
        gpus = 1 if pin or not draw(st.booleans()) else draw(st.integers(1, len(chosen)))
        percent = draw(st.integers(1, 25))
        tenants.append(vgpu_part.Tenant(name, draw(sizes_bytes), percent, draw(st.integers(0, 3)), gpus, pin))
    ratios = st.floats(1.0, 8.0)
    policy, provider = draw(st.sampled_from(vgpu_model.POLICIES)), draw(st.sampled_from(vgpu_model.PROVIDERS))
    waterline = None
    if policy == vgpu_model.COLOCATE:
        latencies = st.sampled_from(vgpu_model.LATENCIES)
        tenants = [dataclasses.replace(tenant, priority=0, latency=draw(latencies)) for tenant in tenants]
        waterline = draw(st.integers(1, 100))
        provider = vgpu_model.AUTO if provider == vgpu_model.MPS else provider
    return vgpu_part.Vgpu(tuple(tenants), policy, draw(ratios), draw(ratios), provider, waterline)


@st.composite
def leases(draw, sharing):
    """Generate leases for an entry with this kind of sharing."""
    profiles = [each.profile for each in draw(st.lists(mig_instances(), min_size=1, max_size=3))]
    vgpu = sharing == "vgpu"
    scheduler = draw(st.sampled_from((None, layout_leases.KUBERNETES, layout_leases.SLURM))) if vgpu else None
    if scheduler is not None:
        most_bytes, most_percent = draw(st.none() | sizes_bytes), draw(st.none() | st.integers(1, 100))
        made = layout_leases.Leases(scheduler, (), most_bytes, most_percent)
        if scheduler == layout_leases.KUBERNETES:
            return made
        unit_mib = draw(st.integers(1, (most_bytes or 2**32) // 2**20))
        percent = draw(st.integers(1, most_percent or 100))
        return dataclasses.replace(made, unit_memory_bytes=unit_mib * 2**20, unit_percent=percent)
    return layout_leases.Leases(
        layout_leases.HOST,
        tuple(draw(st.lists(st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", fullmatch=True), min_size=1, unique=True))),
        draw(st.none() | sizes_bytes) if vgpu else None,
        draw(st.none() | st.integers(1, 25600)) if vgpu else None,
        () if vgpu else tuple(dict.fromkeys(profiles)),
        draw(st.integers(1, layout_leases.MOST_HOURS)),
        draw(st.integers(1, layout_leases.MOST_COUNT)),
    )


@st.composite
def online(draw, allocator):
    """Generate the names of online leases. None means that all leases are online."""
    some = st.lists(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,9}[a-z0-9])?", fullmatch=True), max_size=3, unique=True)
    return draw(st.none() | (st.just(()) if allocator == layout_leases.HOST else some.map(tuple)))


def renamed(layout, numbers):
    """Give every daemon and tenant a unique name.

    Generated names may be equal.
    """

    def fresh(value):
        if value is None or not hasattr(value, "__dataclass_fields__"):
            return tuple(map(fresh, value)) if isinstance(value, tuple) else value
        fields = {name: fresh(getattr(value, name)) for name in value.__dataclass_fields__}
        if isinstance(value, (mps_model.Mps, vgpu_part.Tenant)):
            fields["name"] = "%s%d" % (value.name[:50], next(numbers))
        return type(value)(**fields)

    return fresh(layout)


@st.composite
def layouts(draw):
    entries = []
    taken = set()
    for _ in range(draw(st.integers(0, 4))):
        chosen = tuple(selector for selector in draw(selectors()) if selector not in taken)
        if not chosen or (taken and types.Selector("all") in chosen) or types.Selector("all") in taken:
            continue
        taken.update(chosen)
        sharing = draw(st.sampled_from(forms.SHARINGS))
        parts = {
            "mig": st.lists(mig_instances(), max_size=4).map(tuple),
            "mps": mps(),
            "time_slicing": st.builds(
                time_slicing.TimeSlicing, st.sampled_from(time_slicing.TIME_SLICES), st.integers(1, 16)
            ),
            "vgpu": vgpus(chosen),
        }
        part = draw(parts[sharing]) if sharing in parts else None
        offered = None
        if sharing in ("mig", "vgpu") and draw(st.booleans()):
            offered = draw(leases(sharing))
            if sharing == "vgpu":
                part = dataclasses.replace(
                    part,
                    tenants=part.tenants if draw(st.booleans()) else (),
                    provider="auto" if part.provider == "mps" else part.provider,
                )
                if part.policy == vgpu_model.COLOCATE:
                    offered = dataclasses.replace(offered, online=draw(online(offered.by)))
        entries.append(types.Entry(len(entries), chosen, sharing, part, offered))
    return renamed(types.Layout(tuple(entries)), iter(range(1000)))


# A busy machine can make an example or its generation slow. This is not an error of the parser.


@draws(50)
@given(layouts())
def test_canonical_form_is_complete(layout):
    data = layout_to_data(layout)
    assert parse_layout(data) == layout
    assert schema_errors(data) == []
    assert parse_layout(json.loads(json.dumps(data))) == layout


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from places(each, (*path, number))


words = st.sampled_from(
    ["", "all", "mig", "0", "1g.10gb", "1c.3g.40gb", "3g.40gb+me", "8GiB", "8GB", "GPU-1", "3b:00.0", "long", "a b"]
)
scalars = st.none() | st.booleans() | st.integers(-2, 200) | st.floats() | words | st.text(max_size=5)
keys = st.sampled_from(["gpus", "sharing", "mig", "name", "count", "model", "x"])
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def spoilt(draw):
    """Generate a valid layout, and replace, remove or duplicate one or two values."""
    data = layout_to_data(draw(layouts()))
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(list(places(data))))
        if not path:
            continue
        holder = data
        for step in path[:-1]:
            holder = holder[step]
        action = draw(st.sampled_from(["replace", "remove", "double"]))
        if action == "replace":
            holder[path[-1]] = draw(anything)
        elif action == "remove":
            del holder[path[-1]]
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[path[-1]]))
        else:
            holder["x" + str(path[-1])] = holder[path[-1]]
    return data


@draws(100)
@given(spoilt() | anything)
def test_schema_is_never_stricter_than_the_parser_for_any_value(data):
    before = copy.deepcopy(data)
    try:
        layout = parse_layout(data)
    except LayoutError as error:
        for problem in error.problems:
            assert problem.where.startswith("gpu_layout") and problem.problem and problem.cure
    else:
        assert schema_errors(data) == []
        assert parse_layout(layout_to_data(layout)) == layout
    assert repr(data) == repr(before)
