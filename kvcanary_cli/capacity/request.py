"""What the user gave, from all places, before anything is derived from it.

Order of precedence: words after `--`, then `--args-file`, then the config's `args`; inside each, flags beat
the file that the server's own `--config` names. kvcanary's own options beat the config's sections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kvcanary_cli.capacity.arguments import Arguments, Given, parse_words
from kvcanary_cli.capacity.command import read_args_file, read_command
from kvcanary_cli.capacity.flags import FlagTable, flag_table
from kvcanary_cli.capacity.numbers import MAX_COUNT, parse_human_int, parse_memory_mib
from kvcanary_cli.capacity.origin import COMMAND_LINE, Place
from kvcanary_cli.capacity.tables import DEFAULT_VERSION, Version, find_version
from kvcanary_cli.errors import UsageError

if TYPE_CHECKING:
    from kvcanary_cli.capacity.config import Config
    from kvcanary_cli.capacity.hf_config import HfModel
    from kvcanary_cli.capacity.server_log import LogFacts
    from kvcanary_cli.capacity.workload import Workload

T = TypeVar("T")


class Options(NamedTuple):
    """kvcanary's own options that say what launch flags don't; memory in MiB.

    `estimate_end` is `smallest` or `largest` to take that end of an estimated pool.
    """

    pool_tokens: int | None = None
    context_length: int | None = None
    gpu: str | None = None
    gpu_memory_mib: int | None = None
    estimate_end: str = ""


class Request(NamedTuple):
    """Everything an audit starts from.

    Args:
        is_overridden: whether flags or options stand beside the config, so that what it states may not hold.
    """

    version: Version
    table: FlagTable
    arguments: Arguments = Arguments()
    config: Config | None = None
    options: Options = Options()
    is_overridden: bool = False
    log: LogFacts | None = None
    hf_model: HfModel | None = None
    workload: Workload | None = None

    def with_changes(self, words: Sequence[str], env: dict[str, str], removed: Sequence[str] = ()) -> Request:
        """The same launch without some flags, and with more flags and assignments behind, so that they win."""
        extra = parse_words(words, self.table, COMMAND_LINE).with_env(
            {name: Given(value=value, spelled=name, place=COMMAND_LINE) for name, value in env.items()}
        )
        gone = {flag.name for flag in map(self.table.find, removed) if flag is not None}
        kept = {name: given for name, given in self.arguments.values.items() if name not in gone}
        left = self.arguments._replace(values=kept)
        log = None if self.log is None else self.log.as_inputs()
        return self._replace(arguments=extra.over(left), is_overridden=True, log=log)


def make_request(
    *,
    config_path: str | None = None,
    command: Sequence[str] | None = None,
    args_file: str | None = None,
    pool_tokens: str | None = None,
    context_length: str | None = None,
    gpu: str | None = None,
    gpu_memory: str | None = None,
    from_log: str | None = None,
    hf_config: str | None = None,
    version: str = DEFAULT_VERSION,
) -> Request:
    """Read every place that was named; numbers are still text, as the command line has them.

    Raises: UsageError where nothing is named or an option can't be read, InputError for the files.
    """
    if config_path is None and command is None and args_file is None and from_log is None:
        raise UsageError(
            "there is nothing to check: no config, no `--args-file`, no launch command",
            hint="kvcanary check-capacities --from-args -- python -m sglang.launch_server --model-path ...",
        )
    release = find_version(version)
    table = flag_table(release)
    options = Options(
        pool_tokens=_option("--pool-tokens", pool_tokens, _positive),
        context_length=_option("--context-length", context_length, _positive),
        gpu=gpu,
        gpu_memory_mib=_option("--gpu-memory", gpu_memory, _memory),
    )
    config, arguments = _read_config(config_path, table)
    if args_file is not None:
        arguments = _with_server_config(read_args_file(args_file, table), table).over(arguments)
    if command is not None:
        arguments = _with_server_config(read_command(command, table, COMMAND_LINE), table).over(arguments)
    log = None
    if from_log is not None:
        from kvcanary_cli.capacity.server_log import read_log  # deferred: most launches have no log

        log = read_log(from_log)
    elif config is not None and arguments == Arguments():
        log = config.capacities_alone()
    return Request(
        version=release,
        table=table,
        arguments=arguments,
        config=config,
        options=options,
        is_overridden=(args_file, command, from_log) != (None, None, None) or options != Options(),
        log=log,
        hf_model=_read_hf_config(hf_config),
    )


def _read_config(path: str | None, table: FlagTable) -> tuple[Config | None, Arguments]:
    """A config and the launch flags that it holds."""
    if path is None:
        return None, Arguments()
    from kvcanary_cli.capacity.config import read_config  # deferred: msgspec and PyYAML cost 40 ms

    config = read_config(path)
    return config, _with_server_config(config.arguments(table), table)


def _read_hf_config(word: str | None) -> HfModel | None:
    if word is None:
        return None
    from kvcanary_cli.capacity.hf_config import read_hf_config  # deferred: most launches have none

    return read_hf_config(word)


def _with_server_config(arguments: Arguments, table: FlagTable) -> Arguments:
    """The arguments on top of those in the YAML file that the server's `--config` names."""
    given = arguments.values.get("--config")
    if given is None:
        return arguments
    from kvcanary_cli.capacity.config import mapping_words
    from kvcanary_cli.capacity.yaml_file import read_yaml

    file = read_yaml(str(given.value))
    if not isinstance(file.data, dict):
        raise file.error("the server's config file is a mapping of flags to values")
    words = mapping_words(file.data, table, file, at="$")
    return arguments.over(parse_words(words, table, Place(file=file.path)))


def _option(flag: str, text: str | None, parse: Callable[[str], T]) -> T | None:
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"`{flag}` {error}") from error


def _positive(text: str) -> int:
    number = parse_human_int(text)
    if not 1 <= number <= MAX_COUNT:
        raise ValueError(f"is {number:,}, it ranges from 1 to {MAX_COUNT:,}")
    return number


def _memory(text: str) -> int:
    mib = parse_memory_mib(text)
    if not 1 <= mib <= MAX_COUNT:
        raise ValueError(f"is {mib:,} MiB, it ranges from 1 to {MAX_COUNT:,}")
    return mib
