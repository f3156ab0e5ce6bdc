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

T = TypeVar("T")


class Options(NamedTuple):
    """kvcanary's own options that say what launch flags don't; memory in MiB."""

    pool_tokens: int | None = None
    context_length: int | None = None
    gpu: str | None = None
    gpu_memory_mib: int | None = None


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

    def with_changes(self, words: Sequence[str], env: dict[str, str]) -> Request:
        """The same launch with more flags and environment assignments behind the others, so that they win."""
        extra = parse_words(words, self.table, COMMAND_LINE).with_env(
            {name: Given(value=value, spelled=name, place=COMMAND_LINE) for name, value in env.items()}
        )
        return self._replace(arguments=extra.over(self.arguments), is_overridden=True)


def make_request(
    *,
    config_path: str | None = None,
    command: Sequence[str] | None = None,
    args_file: str | None = None,
    pool_tokens: str | None = None,
    context_length: str | None = None,
    gpu: str | None = None,
    gpu_memory: str | None = None,
    version: str = DEFAULT_VERSION,
) -> Request:
    """Read every place that was named; numbers are still text, as the command line has them.

    Raises: UsageError where nothing is named or an option can't be read, InputError for the files.
    """
    if config_path is None and command is None and args_file is None:
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
    config = None
    arguments = Arguments()
    if config_path is not None:
        from kvcanary_cli.capacity.config import read_config  # deferred: msgspec and PyYAML cost 40 ms

        config = read_config(config_path)
        arguments = _with_server_config(config.arguments(table), table)
    if args_file is not None:
        arguments = _with_server_config(read_args_file(args_file, table), table).over(arguments)
    if command is not None:
        arguments = _with_server_config(read_command(command, table, COMMAND_LINE), table).over(arguments)
    return Request(
        version=release,
        table=table,
        arguments=arguments,
        config=config,
        options=options,
        is_overridden=args_file is not None or command is not None or options != Options(),
    )


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
