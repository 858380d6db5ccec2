# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the names of the inventory's variables, and that playbooks use this check."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import pytest
import yaml

from ansible_collections.openfleet.gpu.plugins.action.check_variables import ActionModule, _is_read
from ansible_collections.openfleet.gpu.plugins.plugin_utils.variables import check, known, rules
from ansible_collections.openfleet.gpu.plugins.plugin_utils.variables.page import pages
from tests.unit.wrong_values import VARIABLES, wrong_values

ROOT = Path(__file__).resolve().parents[4]
OWNERS = known.owners()


@pytest.mark.parametrize("name", VARIABLES)
def test_wrong_value_of_each_variable_is_detected(name):
    for value in wrong_values(name):
        problems = check.check({name: value})
        assert problems, value
        for problem in problems:
            assert problem.where.startswith(name), value
            assert problem.problem and problem.cure, value


@pytest.mark.parametrize("name", VARIABLES)
def test_defaults_of_variables_are_valid(name):
    option = VARIABLES[name].option
    if "default" in option and "{{" not in str(option["default"]):
        assert check.check({name: option["default"]}) == []


@pytest.mark.parametrize("name", [name for name, each in VARIABLES.items() if each.option.get("choices")])
def test_every_choice_is_valid(name):
    option = VARIABLES[name].option
    for choice in option["choices"]:
        assert check.check({name: [choice] if option["type"] == "list" else choice}) == []


def test_rules_are_for_existing_variables():
    assert set(rules.RULES) <= set(VARIABLES)


@pytest.mark.parametrize("name", rules.RULES)
def test_rules_accept_any_value_of_their_type_without_a_traceback(name):
    texts = ["", "x", "²", "9" * 400, "\0", "-1", "[", "/"]
    kind = VARIABLES[name].option.get("type", "str")
    values = {"str": texts, "path": texts, "list": [[text] for text in texts], "dict": [{text: text} for text in texts]}
    for value in values.get(kind, [*texts, *([text] for text in texts), 10**400, None, {}]):
        check.check({name: value})


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([0, "100%"], "without a canary"),
        ([1, "many"], "invalid wave size"),
        ([], "the list is empty"),
        (["0%"], "out of range"),
        (["101%"], "out of range"),
        ([-1], "invalid wave size"),
        ([True], "invalid wave size"),
        (["²"], "invalid wave size"),
        ([1, None], "invalid wave size"),
        ([10**5000], "invalid wave size"),
    ],
)
def test_waves_that_ansible_would_read_differently_are_refused(value, problem):
    (found,) = check.check({"gpu_site_waves": value})
    assert problem in found.problem


@pytest.mark.parametrize("value", [[1, "10%", "100%"], ["1", 5]])
def test_waves(value):
    assert check.check({"gpu_site_waves": value}) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu_layout_lock_timeout", "60"),
        ("gpu_layout_reboot", "yes"),
        ("nvidia_driver_version", 580),
        ("gpu_audit_fail_on", "idle,held_without_process"),
    ],
)
def test_values_of_command_line_options_are_valid(name, value):
    assert check.check({name: value}) == []


def test_misspelt_value_is_reported_with_the_choices():
    (problem,) = check.check({"gpu_layout_on_busy": "drian"})
    assert str(problem) == (
        'gpu_layout_on_busy: unknown value "drian". Did you mean drain? It is one of fail, wait, drain, force.'
    )


@pytest.mark.parametrize(
    ("name", "value", "example"),
    [
        ("gpu_site_waves", "25%", 'gpu_site_waves: [1, "25%", "100%"]'),
        ("gpu_layout_expected_gpus", "H100-80GB", "gpu_layout_expected_gpus: [H100-80GB, H100-80GB]"),
        ("gpu_layout_busy_timeout", "10m", "gpu_layout_busy_timeout: 3600  # seconds"),
        ("nvidia_driver_version", [580], "nvidia_driver_version: 580"),
    ],
)
def test_example_in_an_error_is_valid(name, value, example):
    (problem,) = check.check({name: value})
    assert problem.cure.startswith("Write it like `%s`" % example)
    assert check.check(yaml.safe_load(example)) == []


def test_no_message_has_a_secret():
    for name in ("gpu_audit_prometheus", "gpu_monitoring_url_password", "dcgm_exporter_basic_auth_users"):
        for value in ("hunter2", ["hunter2"], {"user": ["hunter2"]}):
            assert "hunter2" not in "".join(map(str, check.check({name: value})))
    for address in ("ftp://user:hunter2@mirror/simple", "user:hunter2@mirror/simple", "https://user:hunter2@a b"):
        (problem,) = check.check({"gpu_layout_nvml_index_url": address})
        assert problem.problem.startswith('"(hidden)@') and "hunter2" not in str(problem)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("H100-80", "Did you mean H100-80GB? It has "),
        ("A100", "Did you mean A100-40GB or A100-80GB? It has "),
        ("NVIDIA H100 80GB HBM3", "Did you mean H100-80GB? It has "),
        ("h200_141", "Did you mean H200-141GB? It has "),
        ("L40S-48", "Did you mean L40S-48GB? It has "),
        ("MI300X", "It has "),
    ],
)
def test_unknown_model_is_reported_with_a_suggestion(key, meant):
    (problem,) = check.check({"gpu_layout_expected_gpus": ["T4-16GB", key]})
    text = str(problem)
    assert text.startswith("gpu_layout_expected_gpus[1]: the catalogue has no model %s. %s" % (key, meant))
    assert "A10-24GB, A100-40GB" in text
    (problem,) = check.check({"gpu_simulator_gpus": [{"model": key}]})
    assert str(problem).startswith("gpu_simulator_gpus[0].model: the catalogue has no model %s. %s" % (key, meant))


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        (
            [{"model": "T4-16GB", "count": 33}],
            "gpu_simulator_gpus[0].count: 33 is out of range. Write a whole number from 1 to",
        ),
        ([{"model": "T4-16GB", "count": 0}], "gpu_simulator_gpus[0].count: 0 is out of range"),
        (
            [{"model": "T4-16GB", "count": 17}] * 2,
            "gpu_simulator_gpus: these are 34 GPUs. A simulated host can have 32.",
        ),
    ],
)
def test_number_of_simulated_gpus_is_limited(groups, problem):
    (found,) = check.check({"gpu_simulator_gpus": groups})
    assert str(found).startswith(problem)
    assert check.check({"gpu_simulator_gpus": [{"model": "T4-16GB", "count": 32}]}) == []


# -- Names --


@pytest.mark.parametrize("name", ["gpu_layouts", "gpu_layuot", "gpus_layout", "GPU_layout", "gpulayout"])
def test_misspelt_name_of_a_missing_variable_is_in_its_error(name):
    names = [*VARIABLES, name, "gpu_layout_result", "ansible_host", "groups"]
    names.remove("gpu_layout")
    found = check.misspelling("gpu_layout", names)
    assert found == name
    assert str(check.missing("gpu_layout", found)).startswith(
        "gpu_layout: the host has no gpu_layout. It has %s: did you mean gpu_layout? Otherwise write `gpu_layout: []`"
        % name
    )
    assert check.misspelling("gpu_layout", names, ["gpu*lay*", "GPU_*"]) is None


def test_other_variables_are_no_misspelt_ones():
    names = [*VARIABLES, "gpu_layout_result", "gpu_layout_h100", "gpu_hosts", "layout"]
    names.remove("gpu_layout")
    assert check.misspelling("gpu_layout", names) is None
    assert "did you mean" not in str(check.missing("gpu_layout"))


def misspelt(name):
    """Return the name after two letters behind its prefix were exchanged."""
    prefix = next(each for each in known.prefixes() if name.startswith(each))
    rest = name[len(prefix) :]
    for place in range(len(rest) - 1):
        if rest[place] != rest[place + 1]:
            wrong = prefix + rest[:place] + rest[place + 1] + rest[place] + rest[place + 2 :]
            if wrong not in VARIABLES:
                return wrong
    raise AssertionError(name)


@pytest.mark.parametrize("name", [name for name in VARIABLES if name.startswith(known.prefixes())])
def test_a_misspelt_name_of_each_variable_is_an_error(name):
    (found,) = check.unknown([misspelt(name)])
    # Short names are similar to each other, for example dirs and dir.
    assert found.error and (found.nearest == name or len(name.split("_")[-1]) < 6), found


def exchanged_in_prefix(name):
    """Yield the name after each exchange of neighboring letters in its prefix."""
    prefix = next(each for each in known.prefixes() if name.startswith(each))
    for place in range(len(prefix) - 1):
        first, second = prefix[place : place + 2]
        if first != second and "_" not in (first, second):
            yield prefix[:place] + second + first + name[place + 2 :]


@pytest.mark.parametrize("name", [name for name in VARIABLES if name.startswith(known.prefixes())])
def test_a_misspelt_beginning_of_each_variable_is_an_error(name):
    for wrong in exchanged_in_prefix(name):
        assert check.unknown([wrong]) == [check.Unknown(wrong, name, True)]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpu_layuot", "gpu_layout"),
        ("gpu_layuot_on_busy", "gpu_layout_on_busy"),
        ("gpu_layot_on_busy", "gpu_layout_on_busy"),
        ("gpu_layoutt_on_busy", "gpu_layout_on_busy"),
        ("gpu_lauout_on_busy", "gpu_layout_on_busy"),
        ("gup_layout_on_busy", "gpu_layout_on_busy"),
        ("nvidia_drvier_version", "nvidia_driver_version"),
        ("nvdia_driver_version", "nvidia_driver_version"),
        ("gpu_righsize_window", "gpu_rightsize_window"),
        ("conatiner_toolkit_version", "container_toolkit_version"),
    ],
)
def test_typing_error_at_the_start_of_a_name_is_an_error(name, meant):
    assert check.unknown([name]) == [check.Unknown(name, meant, True)]
    assert check.unknown([name], [name[:6] + "*"]) == []


@pytest.mark.parametrize(
    "name",
    [
        # These names differ by a plural or a number.
        *(
            "gpu_layouts",
            "gpu_layout2",
            "gpu_sites",
            "nvidia_drivers_version",
            "gpu_drains_timeout",
        ),
        *("dcgm_exporters_port", "gpu_exports_dir", "gpu1_layout"),
        # These names have other words.
        *("gpu_train_timeout", "gpu_audio_user", "gpu_expert_dir", "gpu_exporter_dir", "gpu_exporter_overwrite"),
        *("gpu_simulation_gpus", "gpu_size_waves", "gpu_suite_tolerate", "gpu_hosts"),
        # Variables of other owners have these names.
        *(
            "my_gpu_layout",
            "my_gpu_layout_on_busy",
            "gpu_limiter_state",
            "lab_gpu_site_waves",
            "nvidia_container_toolkit_version",
        ),
        *(
            "nvidia_dcgm_exporter_port",
            "dcgmexporter_port",
            "nvidia_docker_version",
            "GPU_LAYOUT",
            "NVIDIA_DRIVER_VERSION",
        ),
        # In short names, only exchanged letters are detected.
        *("gpu_layot", "gpu_lauout", "layout", "lab", "_", "__", ""),
    ],
)
def test_plausible_own_name_never_stops_a_run(name):
    assert [each for each in check.unknown([name]) if each.error] == []


def without_a_word(name):
    """Yield the name without one of its words, for each word."""
    words = name.split("_")
    for place in range(len(words)):
        yield "_".join(words[:place] + words[place + 1 :])


@pytest.mark.parametrize("name", [name for name in VARIABLES if name.count("_") >= 3])
def test_name_that_lacks_a_word_of_a_variable_is_an_error(name):
    for wrong in without_a_word(name):
        meant = [each for each in VARIABLES if wrong in without_a_word(each)]
        if wrong in VARIABLES or known.is_internal(wrong) or len(meant) > 1:
            continue
        (found,) = check.unknown([wrong])
        # Without one of its words, the name may be similar to a second variable too.
        assert found.error or " or " in found.nearest, wrong
        assert name in found.nearest or wrong.startswith(known.prefixes()), found


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpu_on_busy", "gpu_layout_on_busy"),
        ("gpu_busy_timeout", "gpu_layout_busy_timeout"),
        ("layout_on_busy", "gpu_layout_on_busy"),
        ("gpu_mig_on_busy", "gpu_layout_on_busy"),
        ("gpu_layouts_on_busy", "gpu_layout_on_busy"),
        ("vgpu_layout_on_busy", "gpu_layout_on_busy"),
        ("gpu_restart_services", "gpu_layout_restart_services or gpu_drain_services"),
        ("gpu_driver_fabric_manager", "nvidia_driver_fabric_manager"),
        ("gpu_waves", "gpu_site_waves"),
        ("gpu_reboot", "gpu_layout_reboot"),
        ("nvidia_version", "nvidia_driver_version"),
        ("gpu_driver_version", "gpu_simulator_driver_version or nvidia_driver_version"),
        ("toolkit_repository_url", "container_toolkit_repository_url"),
    ],
)
def test_a_name_with_a_missing_or_wrong_word_is_an_error(name, meant):
    assert [(each.nearest, each.error) for each in check.unknown([name])] == [(meant, True)]
    assert check.unknown([name], [name[:5] + "*"]) == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("toolkit_version", "container_toolkit_version"),
        ("gpu_url", "gpu_bundle_url or gpu_monitoring_url"),
    ],
)
def test_ambiguous_name_is_a_warning(name, meant):
    assert [(each.nearest, each.error) for each in check.unknown([name])] == [(meant, False)]


@pytest.mark.parametrize(
    "value", ["{{ gpu_on_busy }}", ["{{ gpu_on_busy | default('fail') }}"], {"a": "{{gpu_on_busy}}"}]
)
def test_name_used_by_another_variable_is_the_inventorys_own(value):
    assert _is_read("gpu_on_busy", {"gpu_on_busy": "{{ gpu_on_busy }}", "site_busy": value})
    assert not _is_read(
        "gpu_on_busy", {"gpu_on_busy": "{{ gpu_on_busy }}", "site_busy": "{{ gpu_on_busy_too }} gpu_on"}
    )
    assert not _is_read("gpu_on_busy", {"gpu_on_busy": "drain", "site_busy": "gpu_on_busy"})


def names_of_other_collections():
    """Return the role variables of collections installed with Ansible, by role."""
    folder = Path(sysconfig.get_path("purelib")) / "ansible_collections"
    names = {}
    for path in [
        *folder.glob("*/*/**/roles/*/defaults/**/*.y*ml"),
        *folder.glob("*/*/**/roles/*/*/argument_specs.y*ml"),
    ]:
        found = re.findall(r"^ *(?:- )?[\"']?([A-Za-z_]\w*)[\"']?:", path.read_text(encoding="utf-8"), re.MULTILINE)
        names.setdefault(path.relative_to(folder).parts[:4], set()).update(found)
    return names


@pytest.mark.skipif(
    not (Path(sysconfig.get_path("purelib")) / "ansible_collections" / "grafana").exists(),
    reason="no other collections are installed here",
)
def test_variables_of_other_collections_are_accepted():
    names = set().union(*names_of_other_collections().values())
    assert len(names) > 1000 and "grafana_version" in names
    assert check.unknown(names - set(VARIABLES)) == []


# Variables of published roles and inventories for GPU hosts (DeepOps, Kubespray). Those with a prefix of this
# collection are left out.
ROLES_FOR_GPU_HOSTS = [
    *("nvidia_accelerator_enabled", "nvidia_gpu_flavor", "nvidia_gpu_nodes", "nvidia_url_end", "nvidia_docker_version"),
    *(
        "nvidia_dcgm_container",
        "nvidia_dcgm_prom_dir",
        "dcgm_pkg_name",
        "container_manager",
        "container_manager_on_localhost",
    ),
    *(
        "gpu_operator_driver_version",
        "gpu_operator_namespace",
        "gpu_operator_enable_dcgm",
        "gpu_operator_default_runtime",
    ),
    *("gpu_plugin_enabled", "gpu_feature_discovery_version", "nvidia_k8s_device_plugin_version", "gpu_clock_lock"),
    *("nvidia_mig_strategy", "nvidia_cuda_version", "cuda_version", "gpu_count", "gpu_type", "gpu_nodes", "slurm_gres"),
    *("monitoring_host", "prometheus_config_dir", "exporter_port", "kubernetes_version", "audit_log_path"),
]


def test_variables_of_other_roles_for_gpu_hosts_stop_no_run():
    assert [each for each in check.unknown(ROLES_FOR_GPU_HOSTS) if each.error] == []


def test_a_name_between_two_variables_is_a_warning(monkeypatch):
    others = {name: known.Variable(name, {}, ("gpu_layout",)) for name in ("gpu_layout_first", "gpu_loyout_first")}
    monkeypatch.setattr(known, "variables", lambda: others)
    known.by_words_around.cache_clear()
    try:
        assert check.typing_error("gpu_lyyout_first") == ""
        assert check.typing_error("gpu_laoyut_first") == "gpu_layout_first"
    finally:
        known.by_words_around.cache_clear()


def test_names_similar_to_the_collections_are_warned_of_or_ignored():
    found = {
        each.name: each for each in check.unknown(["gpu_layouts", "nvidia_drivers_version", "gpu_layout_h100", "lab"])
    }
    assert {name: (each.nearest, each.error) for name, each in found.items()} == {
        "gpu_layouts": ("gpu_layout", False),
        "nvidia_drivers_version": ("nvidia_driver_version", False),
        "gpu_layout_h100": ("", False),
    }
    assert check.unknown(["gpu_layout_h100", "gpu_layout_on_bsuy"], ["gpu_layout_*"]) == []


def test_unknown_name_reports_whether_the_run_stops():
    warned, stops = map(str, check.unknown(["gpu_layout_h100", "gpu_layout_on_bsuy"]))
    own = "If it is yours, list it in gpu_site_own_variables."
    assert warned == "gpu_layout_h100: unknown variable, ignored. " + own
    assert stops == ("gpu_layout_on_bsuy: unknown variable. Did you mean gpu_layout_on_busy? " + own)


def test_internal_variables_are_refused_in_inventories():
    names = [
        "gpu_layout_result",
        "gpu_layout_planned",
        "gpu_layout__root",
        "gpu_layout_nvml_directory",
        "gpu_audit_result",
    ]
    assert check.unknown([*VARIABLES, *names]) == []


INVENTORIES = [*ROOT.glob("inventories/*"), *ROOT.glob("molecule/*/inventory")]


@pytest.mark.parametrize("inventory", INVENTORIES, ids=lambda path: "%s-%s" % (path.parent.name, path.name))
def test_inventories_of_this_repository_are_valid(inventory):
    for path in [*inventory.glob("group_vars/*.yml"), *inventory.glob("host_vars/*.yml")]:
        values = yaml.safe_load(path.read_text(encoding="utf-8").replace("!vault", "")) or {}
        assert check.unknown(values) == [], path
        assert check.check({name: value for name, value in values.items() if "{{" not in str(value)}) == [], path


# -- Playbooks --


def plays(name):
    return yaml.safe_load((ROOT / "playbooks" / name).read_text(encoding="utf-8"))


def in_blocks(tasks):
    """Yield each task, also those within blocks."""
    for task in tasks:
        yield task
        yield from in_blocks(task.get("block", []))


def checked(name):
    return {
        owner
        for play in plays(name)
        for task in in_blocks(play.get("tasks", []))
        for owner in task.get("openfleet.gpu.check_variables", {}).get("of", [])
    }


def test_every_role_and_playbook_is_checked():
    roles = {owner for owner in OWNERS if not owner.endswith(".yml")}
    assert checked("site.yml") == {*roles, "site.yml"}
    assert checked("reset.yml") == {*roles, "site.yml"}
    for owner in OWNERS:
        if owner.endswith(".yml"):
            assert owner in checked(owner)


def test_playbook_specs_match_the_variables_they_read():
    prefix = r"gpu_(?:site|report|audit|rightsize|bundle|check|accept|export)_[a-z0-9_]+"
    for playbook in (
        "site.yml",
        "audit.yml",
        "rightsize.yml",
        "bundle.yml",
        "check_gpu.yml",
        "accept.yml",
        "export.yml",
    ):
        text = "".join(
            line.partition("#")[0]
            for path in (ROOT / "playbooks" / playbook, ROOT / "playbooks" / "tasks" / "report.yml")
            for line in path.read_text(encoding="utf-8").splitlines(True)
        )
        read = {name for name in re.findall(prefix, text) if name not in VARIABLES and not known.is_internal(name)}
        assert read == set(), playbook


def test_every_entry_point_of_a_role_has_a_spec():
    """Check that each entry point has a spec under the name that Ansible looks for.

    ansible-core looks for the text of tasks_from. For `plan.yml`, it ignores a spec with the name `plan`.
    """
    for path in [*ROOT.glob("playbooks/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")]:
        text = path.read_text(encoding="utf-8")
        for role, entry in re.findall(r"name: openfleet\.gpu\.(\w+)\n\s+tasks_from: (\S+)", text):
            spec = yaml.safe_load((ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
            assert entry in spec["argument_specs"], (path, role, entry)


def test_reference_pages_match_the_specs():
    texts = pages()
    assert set(texts) == {path.name for path in (ROOT / "docs").glob("variables*.md")}
    for name, text in texts.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, "make variables"
        assert len(text.split()) <= 2000, "split %s in page.py" % name


def test_reference_pages_show_no_markup_of_ansible():
    text = "".join(pages().values())
    assert re.findall(r"\b[A-Z]\([a-z]\S*\)", text) == []


@pytest.mark.parametrize(
    ("host", "checked", "found"),
    [
        ("two", {"gpu_site_waves"}, 1),
        ("two", set(), 0),
        ("monitor", {"gpu_site_waves"}, 0),
        ("one", {"gpu_site_waves"}, 0),
    ],
    ids=["another value", "a play that does not read it", "a host of another group", "the host that is asked"],
)
def test_values_of_a_whole_group_are_compared_within_it(host, checked, found):
    fleet = {"one": {"gpu_site_waves": [1]}, "two": {}, "monitor": {}}
    variables = {"inventory_hostname": host, "groups": {"gpu_hosts": ["one", "two"]}, "hostvars": fleet}
    assert len(ActionModule._differing(checked, fleet[host], variables)) == found


def test_role_on_no_page_is_named(monkeypatch):
    monkeypatch.setattr(known, "owners", lambda: [*OWNERS, "gpu_new_role"])
    with pytest.raises(ValueError, match=r"variables/page\.py must have each role and playbook once: gpu_new_role$"):
        pages()
