# Copyright: (c) openfleet.gpu contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the catalogue of GPU models: one JSON file per model (models/README.md).

The catalogue answers questions without hardware, for example whether a layout fits. It also describes the GPUs of the
simulated NVML. On a host with GPUs, NVML is used instead.
"""

from __future__ import annotations

import difflib
import json
import re
import zipfile
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Iterator, Mapping

from .errors import FleetError
from .frozen import frozen

SCHEMA_VERSION = 1

#: Value for boards whose reserved memory is unknown. Known boards reserve 448 to 728 MiB.
ASSUMED_RESERVED_MIB = 512

#: Estimated memory sizes are multiples of this number. Measured profiles have multiples of 64 MiB, but estimates are less
#: exact.
DERIVED_MEMORY_STEP_MIB = 128

#: Maximum number of GPUs of a simulated host. Must equal MAX_GPUS in host.h of the simulated library.
MOST_SIMULATED_GPUS = 32

#: Maximum length of an unknown key in messages.
_MOST_KEY = 60

_PROFILE_NAME = re.compile(r"^(?P<slices>\d+)g\.(?P<gb>\d+)gb(?P<attribute>\+me\.all|\+me|\+gfx|-me)?$")


class CatalogueError(FleetError):
    """A model file is malformed, or a model does not exist."""


@frozen
class Placement:
    """A range of placement units (for GPU instances) or compute slices."""

    start: int
    size: int


@frozen
class Board:
    """A board: a product with this GPU model.

    `name` is its name in NVML. The PCI device id has four hex digits in lower case. `minimum_driver` is set if the
    board needs another driver than the model.
    """

    name: str
    pci_device_id: str
    minimum_driver: str | None = None


@frozen
class MemoryClock:
    """A memory clock, with its lowest and its highest graphics clock."""

    memory: int
    graphics: tuple[int, ...]


@frozen
class Variant:
    """A variant of the model's first board that has another PCI subsystem id.

    `differences` maps the path of each field that differs to its value. The paths are the same as in hardware reports,
    such as ``memory_reserved_mib`` or ``profiles.3g.71gb.memory_mib``.
    """

    pci_subsystem_id: str
    differences: Mapping[str, int | str]


@frozen
class Profile:
    """A GPU instance profile.

    `nvml_profile` is the enum value for NVML queries. `profile_id` is the number for the NVML calls that create, list
    and place instances. `memory_mib` is None if it is unknown. `Model.profile_memory_mib` then returns an estimate.
    """

    name: str
    nvml_profile: int
    profile_id: int
    compute_slices: int
    memory_mib: int | None
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    max_instances: int
    placement_size: int
    placement_starts: tuple[int, ...]
    unconfirmed: Mapping[str, str]

    @property
    def placements(self) -> tuple[Placement, ...]:
        return tuple(Placement(start, self.placement_size) for start in self.placement_starts)

    @property
    def attribute(self) -> str:
        """Return the suffix of the profile name: "", "+me", "+me.all", "+gfx" or "-me"."""
        match = _PROFILE_NAME.match(self.name)
        return (match.group("attribute") or "") if match else ""


@frozen
class ComputeInstanceProfile:
    """A compute instance profile in a GPU instance.

    Placements are in compute slices.
    """

    compute_slices: int
    nvml_profile: int
    profile_id: int
    max_instances: int
    placement_starts: tuple[int, ...]

    @property
    def placements(self) -> tuple[Placement, ...]:
        return tuple(Placement(start, self.compute_slices) for start in self.placement_starts)


@frozen
class Model:
    """A GPU model. The field names include the units.

    None means unknown. models/README.md describes each field.
    """

    key: str
    boards: tuple[Board, ...]
    pci_subsystem_id: str | None
    brand: str
    architecture: str
    compute_capability: str
    multiprocessors: int
    memory_total_mib: int
    memory_reserved_mib: int | None
    bar1_total_mib: int | None
    row_remapper_banks: int | None
    power_watts: Mapping[str, int | None]
    memory_power_watts: int | None
    module_power_watts: Mapping[str, int | None]
    clocks_mhz: Mapping[str, int | None]
    idle_clocks_mhz: Mapping[str, int | None]
    supported_clocks_mhz: tuple[MemoryClock, ...]
    idle_performance_state: int | None
    application_clock_mhz: int | None
    temperatures_celsius: Mapping[str, int | None]
    memory_temperatures_celsius: Mapping[str, int | None]
    temperature_margins: bool
    idle_fan_percent: int | None
    pcie: Mapping[str, int]
    nvlink_links: int
    nvlink_mb_per_second: int | None
    c2c_links: int
    c2c_mb_per_second: int | None
    vbios_version: str | None
    board_part_number: str | None
    gpu_part_number: str | None
    inforom: Mapping[str, str | None]
    on_module: bool
    mig_capable: bool
    mig_needs_reset: bool
    compute_slices: int | None
    placement_units: int | None
    max_gpu_instances: int | None
    profiles: tuple[Profile, ...]
    compute_instance_profiles: Mapping[int, tuple[ComputeInstanceProfile, ...]]
    unconfirmed: Mapping[str, str]
    sources: tuple[str, ...]
    memory_bus_width_bits: int | None = None
    minimum_driver: str | None = None
    variants: tuple[Variant, ...] = ()

    @property
    def name(self) -> str:
        """Return the NVML name of the first board. The simulator simulates this board."""
        return self.boards[0].name

    def profile(self, name: str) -> Profile:
        """Return the GPU instance profile with this name.

        Raises CatalogueError if the model does not have the profile.
        """
        for profile in self.profiles:
            if profile.name == name:
                return profile
        known = ", ".join(p.name for p in self.profiles)
        raise CatalogueError(
            self.key,
            f"no profile {name}",
            f"Its profiles are {known}" if known else "The model has no MIG",
        )

    def reserved_mib(self) -> int:
        """Return the memory in MiB that the driver reserves, or ASSUMED_RESERVED_MIB."""
        return ASSUMED_RESERVED_MIB if self.memory_reserved_mib is None else self.memory_reserved_mib

    def bar1_mib(self) -> int:
        """Return the size of the BAR1 window in MiB.

        If the size is unknown, returns the memory size rounded up to a power of two.
        """
        return self.bar1_total_mib or 1 << (self.memory_total_mib - 1).bit_length()

    def profile_memory_mib(self, profile: Profile) -> int:
        """Return the profile's memory in MiB, or an estimate if it is unknown.

        The estimate is a share of the memory that the driver does not reserve, in proportion to the profile's placement
        units. It is rounded down to a multiple of DERIVED_MEMORY_STEP_MIB, so that it leads to the memory in the
        profile's name. The name has the memory in GB, rounded to eighths of the GPU's memory.
        """
        if profile.memory_mib is not None:
            return profile.memory_mib
        units = self.placement_units or profile.placement_size
        share = (self.memory_total_mib - self.reserved_mib()) * profile.placement_size // units
        return share // DERIVED_MEMORY_STEP_MIB * DERIVED_MEMORY_STEP_MIB


def load_models(directory: str | None = None) -> dict[str, Model]:
    """Return all models by key, in the order of the keys.

    The model files are in `directory`, or in models/ by default. Raises CatalogueError with the file and field if a
    file is malformed, or if two files have the same key or PCI device id.
    """
    return dict(_shipped_models() if directory is None else _read_models(directory))


@lru_cache(maxsize=1)
def _shipped_models() -> dict[str, Model]:
    return _read_models(None)


def _read_models(directory: str | None) -> dict[str, Model]:
    models: dict[str, Model] = {}
    by_device_id: dict[str, str] = {}
    for source, text in sorted(_model_files(directory)):
        model = parse_model(text, source)
        if model.key in models:
            raise CatalogueError(source, f"a second model with key {model.key}", "Give each model one file")
        for board in model.boards:
            other = by_device_id.setdefault(board.pci_device_id, model.key)
            if other != model.key:
                cure = "The id identifies a GPU on the bus: use it in one model only"
                raise CatalogueError(source, f"PCI device id {board.pci_device_id} is that of {other} too", cure)
        models[model.key] = model
    return dict(sorted(models.items()))


def find_model(key: str, directory: str | None = None) -> Model:
    """Return the model with this key. Case does not matter.

    Raises CatalogueError with similar keys and a list of all keys.
    """
    models = load_models(directory)
    for candidate, model in models.items():
        if candidate.lower() == key.lower():
            return model
    near = _nearest(key[:_MOST_KEY], models)
    cure = f"Did you mean {' or '.join(near)}? " if near else ""
    raise CatalogueError(
        f"model {key[:_MOST_KEY]}", "not in the catalogue", "{}It has {}.".format(cure, ", ".join(models))
    )


def _nearest(key: str, models: Mapping[str, Model]) -> list[str]:
    """Return the known keys that are similar to an unknown key.

    Compares board names, prefixes and spelling.
    """
    wanted = _plain(key)
    boards = {_plain(board.name): model.key for model in models.values() for board in model.boards}
    if wanted in boards:
        return [boards[wanted]]
    longer = [each for each in models if wanted and each.lower().startswith(wanted)]
    by_plain = {each.lower(): each for each in models}
    return longer or [by_plain[each] for each in difflib.get_close_matches(wanted, by_plain, 1)]


def _plain(name: str) -> str:
    """Convert a key or board name to the form of a key, in lower case."""
    plain = re.sub(r"[\s_-]+", "-", name.strip().lower())
    return plain[len("nvidia-") :] if plain.startswith("nvidia-") else plain


def parse_model(text: str | bytes, source: str) -> Model:
    """Parse a model file. `source` is the path of the file for error messages.

    Raises CatalogueError if the file is malformed.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise CatalogueError(source, f"not JSON: {error}", "Fix the file") from error
    reader = _Reader(source, "", data)
    version = reader.take("schema", int)
    if version != SCHEMA_VERSION:
        reader.fail("schema", f"is {version}", f"This catalogue reads version {SCHEMA_VERSION}")
    model = reader.build(Model)
    _check(model, source)
    return model


def _model_files(directory: str | None) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each model file.

    The files may be inside a zipapp.
    """
    archive = getattr(globals().get("__loader__"), "archive", None)
    if directory is None and archive:
        folder = Path(__file__).parent.relative_to(archive) / "models"
        with zipfile.ZipFile(archive) as bundle:
            for member in bundle.namelist():
                if Path(member).parent == folder and member.endswith(".json"):
                    yield str(Path(archive) / member), bundle.read(member)
        return
    path = Path(directory) if directory else Path(__file__).resolve().parent / "models"
    try:
        files = [file for file in path.iterdir() if file.suffix == ".json"]
    except OSError as error:
        cure = "Give a directory with model files"
        raise CatalogueError(str(path), f"cannot be read: {error.strerror}", cure) from error
    for file in files:
        yield str(file), file.read_bytes()


#: For each annotation in the dataclasses above: the Python type, and whether None is allowed.
_PLAIN = {
    "str": (str, False),
    "int": (int, False),
    "bool": (bool, False),
    "int | None": (int, True),
    "str | None": (str, True),
}
_LISTS = {
    "tuple[Board, ...]": Board,
    "tuple[MemoryClock, ...]": MemoryClock,
    "tuple[Variant, ...]": Variant,
    "tuple[Profile, ...]": Profile,
}
_PLAIN_LISTS = {"tuple[int, ...]": int, "tuple[str, ...]": str}
_MAPPINGS = {
    "Mapping[str, str]": (str, False),
    "Mapping[str, str | None]": (str, True),
    "Mapping[str, int]": (int, False),
    "Mapping[str, int | None]": (int, True),
}


class _Reader:
    """Read a JSON object into a dataclass, and check its fields.

    Errors name the file and the field.
    """

    def __init__(self, source: str, place: str, data: Any) -> None:
        self.source, self.place = source, place
        if not isinstance(data, dict):
            self.fail("", "is not an object")
        self.rest = dict(data)

    def fail(self, field: str, problem: str, cure: str = "models/README.md describes the format") -> None:
        place = ".".join(part for part in (self.place, field) if part)
        raise CatalogueError(f"{self.source}: {place or 'the file'}", problem, cure)

    def take(self, field: str, kind: type, nullable: bool = False) -> Any:
        if field not in self.rest:
            self.fail(field, "is missing")
        value = self.rest.pop(field)
        if value is None and nullable:
            return None
        # In Python, bool is a subclass of int. In a model file, `true` is not a number.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.fail(field, f"is {json.dumps(value)}, not {kind.__name__}")
        if kind is int and value < 0:
            self.fail(field, "is negative")
        return value

    def build(self, kind: type) -> Any:
        wanted = [field for field in fields(kind) if field.name in self.rest or field.default is MISSING]
        values = {field.name: self.read(field.name, str(field.type)) for field in wanted}
        for name in self.rest:
            self.fail(name, "is not a field of a model")
        return kind(**values)

    def read(self, field: str, annotation: str) -> Any:
        if annotation in _PLAIN:
            return self.take(field, *_PLAIN[annotation])
        if annotation in _LISTS:
            items = self.take(field, list)
            kind = _LISTS[annotation]
            return tuple(self.inner(f"{field}[{i}]", item).build(kind) for i, item in enumerate(items))
        if annotation in _MAPPINGS:
            inner = self.inner(field, self.take(field, dict))
            return {name: inner.take(name, *_MAPPINGS[annotation]) for name in list(inner.rest)}
        if annotation == "Mapping[str, int | str]":
            inner = self.inner(field, self.take(field, dict))
            return {
                name: inner.take(name, int if isinstance(inner.rest[name], int) else str) for name in list(inner.rest)
            }
        if annotation in _PLAIN_LISTS:
            kind = _PLAIN_LISTS[annotation]
            items = self.take(field, list)
            return tuple(self.inner(field, {str(i): item}).take(str(i), kind) for i, item in enumerate(items))
        return self.compute_instance_profiles(field)

    def compute_instance_profiles(self, field: str) -> Mapping[int, tuple[ComputeInstanceProfile, ...]]:
        result: dict[int, tuple[ComputeInstanceProfile, ...]] = {}
        for slices, items in self.take(field, dict).items():
            place = f"{field}.{slices}"
            if not slices.isdigit() or not isinstance(items, list):
                self.fail(place, "needs the GPU instance's compute slices as key and a list as value")
            result[int(slices)] = tuple(
                self.inner(f"{place}[{i}]", item).build(ComputeInstanceProfile) for i, item in enumerate(items)
            )
        return result

    def inner(self, field: str, data: Any) -> _Reader:
        return _Reader(self.source, ".".join(part for part in (self.place, field) if part), data)


def _check(model: Model, source: str) -> None:
    """Check that the fields of a model are consistent.

    Raises CatalogueError for the first problem.
    """
    problems: list[tuple[str, str]] = []
    if not model.boards:
        problems.append(("boards", "is empty"))
    if Path(source).name != model.key.lower() + ".json":
        problems.append(("key", f"{model.key} does not match the file's name, {model.key.lower()}.json"))
    for name in model.unconfirmed:
        if name not in {field.name for field in fields(Model)}:
            problems.append(("unconfirmed", f"names a field that does not exist: {name}"))
    for mapping, wanted in (
        ("power_watts", {"default", "min", "max", "idle"}),
        ("module_power_watts", {"default", "min", "max", "idle"}),
        ("clocks_mhz", {"graphics", "sm", "memory", "video"}),
        ("idle_clocks_mhz", {"graphics", "memory", "video"}),
        ("temperatures_celsius", {"idle", "max_operating", "slowdown", "shutdown"}),
        ("memory_temperatures_celsius", {"idle", "max"}),
        ("inforom", {"image", "oem", "ecc", "power"}),
        ("pcie", {"generation", "width"}),
    ):
        if set(getattr(model, mapping)) != wanted:
            problems.append((mapping, "needs exactly the fields {}".format(", ".join(sorted(wanted)))))
    if model.power_watts.get("idle") is None and "idle" not in model.unconfirmed.get("power_watts", ""):
        problems.append(("power_watts", "an unknown idle power must be explained under unconfirmed"))
    if any(len(one.graphics) != 2 or one.graphics[0] > one.graphics[1] for one in model.supported_clocks_mhz):
        problems.append(
            ("supported_clocks_mhz", "needs the lowest and the highest graphics clock of each memory clock")
        )
    geometry = (model.compute_slices, model.placement_units, model.max_gpu_instances)
    if model.mig_capable != bool(model.profiles) or model.mig_capable != all(geometry):
        problems.append(("mig_capable", "must be true if the model has profiles, slices and units, else false"))
    for i, profile in enumerate(model.profiles):
        problems += [(f"profiles[{i}].{field}", text) for field, text in _profile_problems(model, profile)]
    problems += _variant_problems(model)
    for number in ("nvml_profile", "profile_id", "name"):
        values = [getattr(profile, number) for profile in model.profiles]
        if len(set(values)) != len(values):
            problems.append(("profiles", f"two of them have the same {number}"))
    if problems:
        field, text = problems[0]
        raise CatalogueError(f"{source}: {field}", text, "models/README.md describes the format")


def _variant_problems(model: Model) -> Iterator[tuple[str, str]]:
    ids = [model.pci_subsystem_id, *(variant.pci_subsystem_id for variant in model.variants)]
    if len(set(ids)) != len(ids):
        yield "variants", "two boards have one subsystem id"
    known = {field.name for field in fields(Model)}
    of_profiles = {f"profiles.{profile.name}.{field.name}" for profile in model.profiles for field in fields(Profile)}
    for i, variant in enumerate(model.variants):
        for path in variant.differences:
            if path not in of_profiles and (path.startswith("profiles") or path.partition(".")[0] not in known):
                yield f"variants[{i}].differences", f"names a field that does not exist: {path}"


def _profile_problems(model: Model, profile: Profile) -> Iterator[tuple[str, str]]:
    match = _PROFILE_NAME.match(profile.name)
    if not match or int(match.group("slices")) != profile.compute_slices:
        yield "name", f"{profile.name} is no profile name of {profile.compute_slices} compute slices"
    for start in profile.placement_starts:
        if start + profile.placement_size > (model.placement_units or 0):
            yield "placement_starts", f"{start} does not leave room for {profile.placement_size} units"
    if not profile.placement_starts or not profile.placement_size:
        yield "placement_starts", "a profile needs a placement"
    if profile.compute_slices not in model.compute_instance_profiles:
        yield "compute_slices", f"compute_instance_profiles has no entry for {profile.compute_slices}"
    for name in profile.unconfirmed:
        if name not in {field.name for field in fields(Profile)}:
            yield "unconfirmed", f"names a field that does not exist: {name}"
    if profile.memory_mib is None and "memory_mib" not in profile.unconfirmed:
        yield "memory_mib", "an unknown value must be listed under unconfirmed"
