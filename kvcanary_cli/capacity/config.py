"""Capacity configs (YAML): what they may hold, how they are read, and the capacities they state or imply.

Top-level keys are `pool`, `gpu`, `args`, `capacities`, `model` and `simulate`; every one may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from kvcanary_cli.capacity.arguments import Arguments
from kvcanary_cli.capacity.command import read_command
from kvcanary_cli.capacity.flags import FlagTable, is_switch
from kvcanary_cli.capacity.numbers import MAX_COUNT
from kvcanary_cli.capacity.origin import Place
from kvcanary_cli.capacity.yaml_file import YamlFile, read_yaml
from kvcanary_cli.errors import KvCanaryError, nearest

if TYPE_CHECKING:
    from kvcanary_cli.capacity.server_log import LogFacts

Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]
Ratio = Annotated[float, msgspec.Meta(gt=0, le=1)]


class PoolSection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The pool: tokens as the server's max_total_num_tokens, of one rank."""

    tokens: Count | None = None
    page_size: Count | None = None
    context_length: Count | None = None
    swa_tokens: Count | None = None


class GpuSection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The smallest visible GPU."""

    name: str | None = None
    memory_mib: Count | None = None


class CapacitiesSection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Launch capacities as a server's log states them."""

    write_req: Count | None = None
    write_entry: Count | None = None
    verify: Count | None = None


class ModelSection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Shape of the model; a `window` means that sliding-window layers have a pool of their own."""

    architecture: str | None = None
    layers: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    dtype: str | None = None
    window: Count | None = None
    ratio: Ratio | None = None
    swa_layers: Count | None = None
    v_head_dim: Count | None = None
    latent_dim: Count | None = None
    weight_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None


class SimulateSection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a request trace becomes forwards; read by `simulate` and `replay`."""

    scheduler: str | None = None
    step_ms: Annotated[float, msgspec.Meta(gt=0)] | None = None
    prefill_tokens_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    mixed_chunk: bool | None = None
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None


class ConfigFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The whole file; a section without content counts as left out."""

    pool: PoolSection | None = None
    gpu: GpuSection | None = None
    args: list[str | int | float] | dict[str, Any] | None = None
    capacities: CapacitiesSection | None = None
    model: ModelSection | None = None
    simulate: SimulateSection | None = None


_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "pool": PoolSection,
    "gpu": GpuSection,
    "capacities": CapacitiesSection,
    "model": ModelSection,
    "simulate": SimulateSection,
}


class Config(NamedTuple):
    """A config that was read, with absent sections as empty ones."""

    file: YamlFile
    pool: PoolSection
    gpu: GpuSection
    capacities: CapacitiesSection
    model: ModelSection
    simulate: SimulateSection
    args: list[str | int | float] | dict[str, Any] | None

    @property
    def path(self) -> str:
        """The file's name as it was given."""
        return self.file.path

    @property
    def states_capacities(self) -> bool:
        """Whether any launch capacity is stated."""
        return any(value is not None for value in msgspec.structs.astuple(self.capacities))

    def capacities_alone(self) -> LogFacts | None:
        """All three capacities, where the config states them and nothing that they could follow from."""
        from kvcanary_cli.capacity.server_log import stated_capacities

        stated = self.capacities
        if stated.write_req is None or stated.write_entry is None or stated.verify is None:
            return None
        if self.pool.tokens is not None or self.pool.context_length is not None:
            return None
        return stated_capacities(
            self.path, write_req=stated.write_req, write_entry=stated.write_entry, verify=stated.verify
        )

    def arguments(self, table: FlagTable) -> Arguments:
        """The launch flags under `args`; errors name the file and line."""
        if not self.args:
            return Arguments()
        words = (
            mapping_words(self.args, table, self.file, at="$.args")
            if isinstance(self.args, dict)
            else [str(word) for word in self.args]
        )
        return read_command(words, table, Place(file=self.path, line=self.file.line("$.args")))


def read_config(path: str) -> Config:
    """Read a capacity config.

    Raises: InputError for a file that is not YAML, repeats or doesn't know a key, or holds a value of the
        wrong type or range.
    """
    file = read_yaml(path)
    if not isinstance(file.data, dict):
        found = "nothing" if file.data is None else f"a {type(file.data).__name__}"
        raise file.error(
            f"a config is a mapping with the keys {', '.join(ConfigFile.__struct_fields__)}, found {found}"
        )
    check_keys(file, file.data, ConfigFile, "$")
    for key, section in _SECTIONS.items():
        if isinstance(file.data.get(key), dict):
            check_keys(file, file.data[key], section, f"$.{key}")
    try:
        whole = msgspec.convert(file.data, ConfigFile)
    except msgspec.ValidationError as error:
        message, _, at = str(error).partition(" - at `")
        raise file.error(message[:1].lower() + message[1:], at=at.removesuffix("`") or "$") from error
    return Config(
        file=file,
        pool=whole.pool or PoolSection(),
        gpu=whole.gpu or GpuSection(),
        capacities=whole.capacities or CapacitiesSection(),
        model=whole.model or ModelSection(),
        simulate=whole.simulate or SimulateSection(),
        args=whole.args,
    )


def check_keys(file: YamlFile, data: Mapping[Any, Any], section: type[msgspec.Struct], at: str) -> None:
    """Refuse a key that a section doesn't have, naming the nearest it has."""
    known = section.__struct_fields__
    for key in data:
        if key not in known:
            close = nearest(str(key), known)
            raise file.error(
                f"the key `{key}` is not known here, which has {', '.join(known)}",
                at=f"{at}.{key}",
                hint=f"did you mean `{close}`?" if close else None,
            )


def mapping_words(data: Mapping[Any, Any], table: FlagTable, file: YamlFile, *, at: str) -> list[str]:
    """A mapping of flags to values as the words of a command; two dashes in front of a key may be left out.

    true and false switch a switch; a list gives several words; a mapping becomes JSON; null is not given.
    """
    words: list[str] = []
    for key, value in data.items():
        if not isinstance(key, str):
            raise file.error(f"the name of a flag is wanted, found `{key}`", at=at)
        flag = key if key.startswith("-") else f"--{key}"
        if value is None or (value is False and is_switch(table, flag)):
            continue
        if value is True and is_switch(table, flag):
            words.append(flag)
        elif isinstance(value, list):
            words += [flag, *(_word(item) for item in value)]
        else:
            words.append(f"{flag}={_word(value)}")
    return words


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"), default=str)
    return str(value)


class StatedPool(NamedTuple):
    """The pool a config describes; what it doesn't say is None. `tokens` are max_total_num_tokens."""

    tokens: int | None
    page_size: int | None
    context_length: int | None
    window: int | None
    swa_tokens: int | None


class LoadedCapacities(NamedTuple):
    """Launch capacities for a replay, stated or computed; None where they are neither."""

    write_req_capacity: int | None
    write_entry_capacity: int | None
    verify_capacity: int | None
    pool: StatedPool
    simulate: SimulateSection


def load_capacities(path: str) -> LoadedCapacities:
    """Capacities of a config: those it states, the others computed from its flags and pool.

    Raises: InputError for a file that can't be used, or states nothing and lacks an input of the formula.
    """
    from kvcanary_cli.capacity.request import make_request
    from kvcanary_cli.capacity.setup import MissingInputsError, resolve
    from kvcanary_cli.capacity.sizes import derive

    request = make_request(config_path=path)
    config = request.config
    if config is None:
        raise KvCanaryError(f"no config was read from {path}")
    stated = config.capacities
    pool = StatedPool(
        tokens=config.pool.tokens,
        page_size=config.pool.page_size,
        context_length=config.pool.context_length,
        window=config.model.window,
        swa_tokens=config.pool.swa_tokens,
    )
    computed: tuple[int | None, int | None, int | None] = (None, None, None)
    try:
        setup = resolve(request)
    except MissingInputsError:
        if not config.states_capacities:
            raise
    else:
        sizes = derive(setup)
        computed = (sizes.write_req, sizes.write_entry, sizes.verify)
        pool = StatedPool(
            tokens=setup.pool.tokens,
            page_size=setup.pool.page_size,
            context_length=setup.pool.context_length,
            window=setup.window.size,
            swa_tokens=setup.window.tokens,
        )
    return LoadedCapacities(
        write_req_capacity=computed[0] if stated.write_req is None else stated.write_req,
        write_entry_capacity=computed[1] if stated.write_entry is None else stated.write_entry,
        verify_capacity=computed[2] if stated.verify is None else stated.verify,
        pool=pool,
        simulate=config.simulate,
    )
