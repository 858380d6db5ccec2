# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run fits and import, the subcommands that need only the catalogue."""

# This program prints to its user.
# pylint: disable=ansible-bad-function
from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from typing import Any

from .. import catalogue
from ..change import planner
from ..errors import FleetError, PlanError
from ..layout.files import read_configuration
from ..layout.profile_name import ProfileNameError, parse_profile_name
from ..layout.yaml_text import layout_yaml
from ..plan.assumed import assumed_gpus
from ..plan.gpu_plan import Target, listing
from ..techniques.importers import MIG_PARTED
from ..vendors.nvidia.mig.divider import MigDivider, MigDivision, WantedInstance

_PROFILE = re.compile(r"(?:([1-9][0-9]*)x)?([^@]+)(?:@([0-9]+))?")


def fits(options: Namespace) -> int:
    """Check whether these profiles fit on an empty GPU of this model.

    Prints placements and returns 0 if they fit. Otherwise prints the largest part that fits and returns 1.
    """
    models = catalogue.load_models()
    model = _model(options.model, models)
    gpu = assumed_gpus([model.key], models)[0]
    wanted = [instance for text in options.profiles for instance in _wanted(text)]
    target = Target(gpu.uuid, model.key, MigDivider.key, MigDivision(tuple(wanted)))
    unconfirmed = _unconfirmed(model, {instance.profile for instance in wanted})
    try:
        placed = planner.plan_gpu(gpu, target).planned()
    except PlanError as error:
        # The planner's error names a GPU of a host. No host is involved here, so name the model instead.
        refused = PlanError(model.key, error.problem, error.cure)
        if options.json:
            part = MigDivider().largest_part(gpu, [instance.profile for instance in wanted])
            _print(model, False, unconfirmed, problem=refused.problem, cure=refused.cure, largest_part=part)
        else:
            print(refused)
            _print_unconfirmed(unconfirmed)
        return 1
    if options.json:
        instances = [{"profile": each.profile, "placement": each.start} for each in placed]
        _print(model, True, unconfirmed, instances=instances)
    else:
        names = listing([instance.profile for instance in wanted])
        places = ", ".join("%s@%d" % (each.profile, each.start) for each in placed)
        print("%s: %s fit%s, as %s" % (model.key, names, "s" if len(wanted) == 1 else "", places))
        _print_unconfirmed(unconfirmed)
    return 0


def import_(options: Namespace) -> int:
    """Print the configurations in a mig-parted file as layouts.

    Also print the parts that no layout can express.
    """
    data = read_configuration(options.file, "mig-configs")
    found = MIG_PARTED(data, options.file, catalogue.load_models())
    if options.label is not None:
        if options.label not in found:
            raise FleetError(
                options.file,
                "it has no configuration %s" % options.label,
                "It has: %s." % ", ".join(found),
            )
        found = {options.label: found[options.label]}
    if options.json:
        data = {name: {"gpu_layout": one.layout, "problems": list(one.problems)} for name, one in found.items()}
        print(json.dumps(data, indent=2))
    for name, one in found.items():
        if not options.json:
            # The output has one document for each layout.
            print("---\n# %s" % name)
            print("".join("# NOT AS THERE: %s\n" % problem for problem in one.problems), end="")
            print(layout_yaml(one.layout), end="")
        for problem in one.problems:
            print("gpu-layout: %s" % problem, file=sys.stderr)
    return 0


def _model(name: str, models: dict[str, catalogue.Model]) -> catalogue.Model:
    """Return the model with this key or board name.

    Ignores case and the word NVIDIA.
    """
    plain = name.lower().replace("nvidia ", "", 1)
    for model in models.values():
        names = [model.key, *(board.name.replace("NVIDIA ", "", 1) for board in model.boards)]
        if plain in [known.lower() for known in names]:
            return model
    raise catalogue.CatalogueError("model %s" % name, "it is not in the catalogue", "It has: %s." % ", ".join(models))


def _wanted(text: str) -> list[WantedInstance]:
    match = _PROFILE.fullmatch(text)
    count, name, start = match.groups() if match else (None, text, None)
    try:
        profile = parse_profile_name(name)
    except ProfileNameError as error:
        raise FleetError(text, error.problem, error.cure) from None
    if profile.is_split:
        cure = "Use %s instead: its compute instances need no further space." % profile.gpu_instance
        raise FleetError(text, "it is a compute instance", cure)
    return [WantedInstance(name, None if start is None else int(start))] * int(count or 1)


def _unconfirmed(model: catalogue.Model, profiles: set[str]) -> dict[str, str]:
    """Return the unconfirmed values that affect the answer, each with its source."""
    found = dict(model.unconfirmed)
    for profile in model.profiles:
        if profile.name in profiles:
            found.update(("%s.%s" % (profile.name, field), why) for field, why in profile.unconfirmed.items())
    return found


def _print(model: catalogue.Model, fitting: bool, unconfirmed: dict[str, str], **more: Any) -> None:
    print(json.dumps(dict(more, model=model.key, fits=fitting, unconfirmed=unconfirmed), indent=2))


def _print_unconfirmed(unconfirmed: dict[str, str]) -> None:
    for field, why in unconfirmed.items():
        print("not confirmed: %s (%s)" % (field, why))
