# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan changes of GPUs that the layout no longer names.

All functions are pure. Only `AppliedRecord` reads and writes files.

The state directory records the state that the collection last applied to each GPU. With the policy `keep`, a GPU that
is no longer named keeps this state. If the GPU lost the state, for example in a reboot, the state is restored. With the
policy `release`, the GPU becomes `shared`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Callable, Collection, Iterable, Mapping, Sequence

from .. import durable
from ..errors import LayoutError, PlanError, SelectorError
from ..export.layout import exported
from ..frozen import frozen
from ..layout.form import Form, Seen
from ..layout.matching import matches
from ..layout.types import WITHOUT_PART, Entry, Layout, Selector
from ..model import Device, Host, lost_of, parts_of
from ..plan.gpu_plan import Plan, Target
from ..plan.ownership import KEEP, Ownership
from ..techniques.forms import FORMS, INSIDE, layout_to_data, parse_layout
from ..vendors.registry import DIVIDERS, divider_of, vendor_of
from . import planner
from .targets import resolved, targets

SCHEMA = 1


@frozen
class Applied:
    """The last applied state of the host's GPUs, as layout entries.

    The entries select GPUs by UUID and contain all placements and names. `entries` is None if the state directory was
    written by an earlier release that did not record entries.
    """

    entries: tuple[Entry, ...] | None = None

    @property
    def known(self) -> tuple[Entry, ...]:
        """Return the entries, or () without a record."""
        return self.entries or ()

    def to_data(self) -> dict[str, Any]:
        """Return the content of applied.json."""
        return {"schema": SCHEMA, "gpu_layout": layout_to_data(Layout(self.known))}


class AppliedRecord:
    """The file that records a host's last applied state."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory) / "applied.json"

    def read(self) -> Applied:
        """Read applied.json. Raises ApplyError if this release cannot read it."""
        data = durable.read(self.path, SCHEMA)
        if data is None:
            return Applied()
        try:
            return Applied(parse_layout(data["gpu_layout"]).entries)
        except (KeyError, LayoutError):
            raise durable.damaged(self.path) from None

    def write(self, data: Mapping[str, Any]) -> None:
        """Write data from `Applied.to_data`, unless the file already contains it."""
        current = durable.read(self.path, SCHEMA)
        if current != data and (current is not None or data["gpu_layout"]):
            durable.write(self.path, data)


@frozen
class Unmanaged:
    """A GPU that lost its layout entry: recorded state, current state and action.

    `action` is "keep", "restore", "release" or "leave". It is "leave" if the GPU cannot be restored, or if the current
    state is neither the recorded state nor the state after a boot.
    """

    index: int
    uuid: str
    name: str
    action: str
    recorded: str
    current: str
    text: str
    #: Keys of the techniques that had daemons or tenants on the GPU.
    services: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the GPU's line in a plan."""
        return "gpu %d: %s" % (self.index, self.text)


@frozen
class Decision:
    """The result of planning: the plan, the next record and the report.

    The plan covers the layout and the GPUs that lost their entry.
    """

    plan: Plan
    applied: Applied
    unmanaged: tuple[Unmanaged, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def restores(self) -> bool:
        """Return whether the plan restores a GPU without an entry."""
        return any(each.action == "restore" for each in self.unmanaged)

    def kept_places(self, uuid: str) -> frozenset[tuple[str, int | None]]:
        """Return (profile, start) of each instance that a boot recreates on the GPU.

        Returns an empty set if the GPU has an entry or is not kept.
        """
        if uuid not in {each.uuid for each in self.unmanaged if each.action in ("keep", "restore")}:
            return frozenset()
        instances = [i for entry in self.applied.known if _names(entry, uuid) for i in entry.instances]
        return frozenset((instance.profile, instance.placement) for instance in instances)


@frozen
class Situation:
    """The input of a decision.

    `services_seen` has each service's current daemons or tenants, by the technique's key. `saved_gpus` has the UUIDs,
    in lower case, of the GPUs in a saved plan. These GPUs stay in the plan even after it was applied.
    """

    layout: Layout
    host: Host
    ownership: Ownership
    services_seen: Seen
    applied: Applied
    saved_gpus: frozenset[str] = frozenset()


#: A function that plans a layout on the observed host. Raises PlanError.
Make = Callable[[Layout], Plan]


def decide(situation: Situation, policy: str, make: Make, make_last: Make, restore: bool = True) -> Decision:
    """Plan the layout and the GPUs that lost their entry.

    `make` makes the intermediate plans. `make_last` makes the plan to apply, which may be a saved plan. If `restore` is
    false, GPUs that lost their state are not changed. Raises the PlanErrors of `make` and `make_last`.
    """
    layout, host = situation.layout, situation.host
    named = {uuid.lower() for uuid in resolved(layout, host.gpus)}
    recorded = situation.applied.known if situation.applied.entries is not None else _adopted(situation, named)
    unnamed = [entry for entry in recorded if any(str(s.value).lower() not in named for s in entry.selectors)]
    if not unnamed and (policy == KEEP or situation.saved_gpus <= named):
        plan = make_last(layout)
        return Decision(plan, _record(_applied(plan)))
    base = make(layout)
    new = _applied(base)
    kept = restricted(unnamed, named, _taken(new))
    if policy == KEEP:
        return _keep(situation, kept, base, (make, make_last), restore)
    return _release(situation, named, kept, make_last)


def unnamed_gpus(layout: Layout, host: Host, applied: Applied, services_seen: Seen) -> tuple[Unmanaged, ...]:
    """Return the working GPUs that have a recorded entry but no entry in the layout.

    For reports.
    """

    selectors = [selector for entry in layout.entries for selector in entry.selectors]
    named = {gpu.uuid.lower() for gpu in host.gpus if any(matches(each, gpu) for each in selectors)}
    found = []
    for gpu in host.gpus:
        entries = [entry for entry in applied.known if _names(entry, gpu.uuid)]
        if entries and gpu.uuid.lower() not in named:
            found.append(_unmanaged(gpu, entries[0], "keep", "", services_seen))
    return tuple(found)


def without_service(applied: Applied, key: str) -> Applied:
    """Return the record without this technique's daemons or tenants.

    For a host from which the technique's service was removed.
    """
    names = {key: {name for entry in applied.known for form, part in _parts(entry) for name in form.names(part)}}
    return applied if applied.entries is None else Applied(tuple(restricted(applied.entries, (), names)))


def restricted(entries: Iterable[Entry], named: Collection[str], taken: Mapping[str, Collection[str]]) -> list[Entry]:
    """Return the entries without the GPUs in `named` and without names in `taken`.

    `named` has UUIDs in lower case. If a daemon or tenant loses a GPU, or if its name is taken, the technique reduces
    or drops its part of the entry.
    """
    found = []
    for entry in entries:
        selectors = tuple(each for each in entry.selectors if str(each.value).lower() not in named)
        if selectors:
            cut = len(selectors) < len(entry.selectors)
            uuids = {str(each.value).lower() for each in selectors}
            found.append(_restricted(dataclasses.replace(entry, selectors=selectors), uuids, cut, taken))
    return found


def describe(entry: Entry) -> str:
    """Return the state of a GPU with this entry as text.

    The text has the sharing, the instances and the names of daemons and tenants.
    """
    words = []
    for instance in entry.instances:
        place = "" if instance.placement is None else "@%d" % instance.placement
        inside = [
            " with %s %s" % (form.key, name)
            for form in INSIDE
            if form.key == instance.sharing
            for name in form.names(instance.part)
        ]
        split = " [%s]" % ", ".join(instance.compute_instances) if instance.compute_instances else ""
        words.append("%s%s%s%s" % (instance.profile, place, split, "".join(inside)))
    words += [name for form in FORMS if form.key == entry.sharing for name in form.names(entry.part)]
    if entry.sharing in DIVIDERS and not words:
        words = ["no instances"]
    return "%s (%s)" % (entry.sharing, ", ".join(words)) if words else entry.sharing


def state(gpu: Device, services_seen: Seen) -> str:
    """Return the current state of a GPU in the format of `describe`."""
    entries = _exported([gpu], services_seen)
    return describe(entries[0]) if entries else "a state that no layout describes"


def _keep(situation: Situation, kept: Sequence[Entry], base: Plan, makes: tuple[Make, Make], restore: bool) -> Decision:
    make, make_last = makes
    accepted: list[Entry] = []
    current = base
    unmanaged: dict[str, Unmanaged] = {}
    warnings: list[str] = []
    for entry in (part for each in kept for part in _restorable_parts(each, situation.host)):
        gpus = [gpu for gpu in situation.host.gpus if _names(entry, gpu.uuid)]
        action, problem, plan = "keep", "", current
        wanted = targets(Layout((entry,)), situation.host.gpus)
        if not all(_untouched(gpu, target) for gpu, target in zip(gpus, wanted)):
            action = "leave"
        else:
            layout = Layout((*situation.layout.entries, *accepted, entry))
            try:
                plan = make(layout)
            except (PlanError, SelectorError) as error:
                action, problem = "leave", "%s: %s" % (error.where, error.problem)
            else:
                missing = any(plan.changed(each) for each in plan.gpus if _names(entry, each.gpu.uuid))
                busy = [each for each in plan.disturbs if each not in base.disturbs]
                if missing and not restore:
                    action, problem = "leave", "an attempt to restore it failed"
                elif missing and busy:
                    action, problem = "leave", "; ".join("%s is in use" % each.what for each in busy)
                elif missing:
                    action, current = "restore", plan
                    accepted.append(entry)
                elif all(gpu.uuid.lower() in situation.saved_gpus for gpu in gpus):
                    accepted.append(entry)
        for gpu in gpus:
            unmanaged[gpu.uuid] = _unmanaged(gpu, entry, action, problem, situation.services_seen)
            if problem:
                warnings.append("%s is unmanaged and is not restored: %s" % (gpu.short_label, problem))
    plan = make_last(Layout((*situation.layout.entries, *accepted)))
    new = _applied(base)
    ordered = tuple(unmanaged[gpu.uuid] for gpu in situation.host.gpus if gpu.uuid in unmanaged)
    return Decision(plan, _record((*new, *kept)), ordered, tuple(warnings))


def _release(situation: Situation, named: Collection[str], kept: Sequence[Entry], make_last: Make) -> Decision:
    host, entries, unmanaged = situation.host, [], []
    for gpu in host.gpus:
        recorded = [entry for entry in kept if _names(entry, gpu.uuid)]
        if recorded or (gpu.uuid.lower() in situation.saved_gpus and gpu.uuid.lower() not in named):
            entries.append(_released(gpu, situation.ownership))
        if recorded:
            unmanaged.append(_unmanaged(gpu, recorded[0], "release", "", situation.services_seen))
    plan = make_last(Layout((*situation.layout.entries, *entries)))
    labels = {entry.label for entry in entries}
    new = _applied(Plan(tuple(each for each in plan.gpus if each.target.where not in labels), plan.parts))
    # Keep the record of a lost GPU, to release the GPU when it works again. A GPU that was removed from the host needs
    # no record.
    lost = [
        dataclasses.replace(entry, selectors=selectors)
        for entry in kept
        for selectors in [tuple(each for each in entry.selectors if lost_of(host, str(each.value)) is not None)]
        if selectors
    ]
    return Decision(plan, _record((*new, *lost)), tuple(unmanaged))


def _released(gpu: Device, ownership: Ownership) -> Entry:
    """Return the entry that removes the collection's state from the GPU."""
    label = "the released gpu %d" % gpu.index
    selectors = (Selector("uuid", gpu.uuid),)
    if ownership.policy == "keep" and any(ownership.foreign(gpu, part) for part in parts_of(gpu)):
        # Keep the GPU divided, because parts of it belong to other owners.
        return Entry(0, selectors, divider_of(gpu).key, (), label=label)
    return Entry(0, selectors, "shared", label=label)


def _restorable_parts(entry: Entry, host: Host) -> list[Entry]:
    """Return an entry for each GPU of the host that the recorded entry selects.

    If the GPUs share a daemon or tenants, one entry for all of them is returned.
    """
    present = {gpu.uuid.lower(): gpu for gpu in host.gpus}
    gpus = [(each, present.get(str(each.value).lower())) for each in entry.selectors]
    here = [(selector, gpu) for selector, gpu in gpus if gpu is not None]
    if any(form.key == entry.sharing and form.divides(entry.part) for form in FORMS):
        label = "the entry kept for gpu %s" % " and ".join(str(gpu.index) for _selector, gpu in here)
        return [dataclasses.replace(entry, label=label)] if here else []
    return [
        dataclasses.replace(entry, selectors=(selector,), label="the entry kept for gpu %d" % gpu.index)
        for selector, gpu in here
    ]


def _unmanaged(gpu: Device, entry: Entry, action: str, problem: str, seen: Seen) -> Unmanaged:
    current, recorded = state(gpu, seen), describe(entry)
    text = "unmanaged, without an entry: "
    if action == "release":
        text = "released, without an entry (it has %s)" % current
    elif action == "restore":
        text += "restores %s" % recorded
    elif action == "leave":
        reason = "not restored: %s" % problem if problem else "left as it is"
        text += "has %s instead of %s, %s" % (current, recorded, reason)
    elif current != recorded:
        text += "has %s instead of %s" % (current, recorded)
    else:
        text += "keeps %s" % current
    services = tuple(dict.fromkeys(form.key for form, _part in _parts(entry) if form.cdi_devices))
    return Unmanaged(gpu.index, gpu.uuid, gpu.name, action, recorded, current, text, services)


def _untouched(gpu: Device, target: Target) -> bool:
    """Return whether only this collection or a boot changed the GPU's state.

    Each part of the state must be as in the target or as after a boot.
    """
    return divider_of(gpu).untouched(gpu, target.division) and all(
        each.untouched(gpu, target.settings.get(each.setting)) for each in planner.settings_of(gpu)
    )


def _adopted(situation: Situation, named: Collection[str]) -> list[Entry]:
    """Return entries for GPUs that an earlier release changed without a record.

    They are derived from that release's records of instances, daemons, tenants and time slices.
    """
    gpus = []
    for gpu in situation.host.gpus:
        if gpu.uuid.lower() not in named:
            own = [part for part in parts_of(gpu) if not situation.ownership.foreign(gpu, part)]
            gpus.append(divider_of(gpu).only(gpu, own))
    exported = _exported(gpus, situation.services_seen)
    return [entry for entry in exported if entry.sharing not in WITHOUT_PART and entry.part != ()]


def _applied(plan: Plan) -> tuple[Entry, ...]:
    """Return layout entries for the state that the plan's GPUs have after the plan."""
    return _exported(
        [vendor_of(each.gpu).after(each) for each in plan.gpus], {part.key: part.planned() for part in plan.parts}
    )


def _record(entries: Iterable[Entry]) -> Applied:
    """Return a record of the entries that the parser accepts.

    The parser may refuse exported entries.
    """
    readable: list[Entry] = []
    for entry in entries:
        try:
            parse_layout(layout_to_data(Layout((*readable, entry))))
        except LayoutError:
            continue
        readable.append(entry)
    return Applied(tuple(readable))


def _exported(gpus: Sequence[Device], seen: Seen) -> tuple[Entry, ...]:
    # A layout cannot express the parts of a divider that has no form of layout entries.
    gpus = [gpu for gpu in gpus if any(form.key == gpu.divider for form in FORMS)]
    return exported(gpus, pin_placements=True, select_by="uuid", seen=seen, whole=False).layout.entries


def _taken(entries: Iterable[Entry]) -> dict[str, set[str]]:
    """Return the names of the entries' daemons and tenants, by the technique's key."""
    found: dict[str, set[str]] = {}
    for entry in entries:
        for form, part in _parts(entry):
            found.setdefault(form.key, set()).update(form.names(part))
    return found


def _parts(entry: Entry) -> list[tuple[Form, Any]]:
    own = [(form, entry.part) for form in FORMS if form.key == entry.sharing]
    return [*own, *((form, i.part) for i in entry.instances for form in INSIDE if form.key == i.sharing)]


def _restricted(entry: Entry, uuids: Collection[str], cut: bool, taken: Mapping[str, Collection[str]]) -> Entry:
    for form in FORMS:
        if form.key == entry.sharing and entry.sharing not in DIVIDERS:
            part = form.restricted(entry.part, uuids, cut, taken.get(form.key, ()))
            if part is None:
                return dataclasses.replace(entry, sharing=form.without_part, part=None)
            return dataclasses.replace(entry, part=part)
    if not entry.instances:
        return entry
    instances = []
    for instance in entry.instances:
        part = instance.part
        for form in INSIDE:
            if form.key == instance.sharing:
                part = form.restricted(part, uuids, cut, taken.get(form.key, ()))
        sharing = None if part is None else instance.sharing
        instances.append(dataclasses.replace(instance, sharing=sharing, part=part))
    return dataclasses.replace(entry, part=tuple(instances))


def _names(entry: Entry, uuid: str) -> bool:
    return any(str(selector.value).lower() == uuid.lower() for selector in entry.selectors)
