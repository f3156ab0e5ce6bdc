"""`kvcanary check-capacities`: does a server's canary hold what its flags allow?"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from kvcanary_cli.commands._options import (
    ExitZeroOption,
    FormatOption,
    OutputOption,
    QuietOption,
    StrictOption,
    VerboseOption,
    emit_options,
)
from kvcanary_cli.errors import UsageError
from kvcanary_cli.output import Format, emit

_YAML = (".yaml", ".yml")


WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG] [-- COMMAND...]", help="Config (YAML); launch command of the server."),
]
FromArgsOption = Annotated[
    bool, typer.Option("--from-args", help="Read the launch command that stands after `--`.")
]
ArgsFileOption = Annotated[
    str | None, typer.Option("--args-file", metavar="FILE", help="Read the launch command in FILE.")
]
ConfigOption = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="Capacity config; launch flags win over it.")
]
PoolTokensOption = Annotated[
    str | None,
    typer.Option(
        "--pool-tokens", metavar="N", help="Tokens of the KV pool, max_total_num_tokens; 400k is taken."
    ),
]
ContextLengthOption = Annotated[
    str | None, typer.Option("--context-length", metavar="N", help="Tokens that one request may have.")
]
GpuOption = Annotated[
    str | None,
    typer.Option("--gpu", metavar="NAME", help="GPU, such as H100: the server's defaults depend on it."),
]
GpuMemoryOption = Annotated[
    str | None,
    typer.Option("--gpu-memory", metavar="SIZE", help="Memory of the smallest GPU, in MiB or as 80GiB."),
]
FromLogOption = Annotated[
    str | None,
    typer.Option("--from-log", metavar="FILE", help="Start-up log of a server; flags win over it."),
]
HfConfigOption = Annotated[
    str | None,
    typer.Option("--hf-config", metavar="FILE|NAME", help="The model: its config.json, or a known name."),
]
VersionOption = Annotated[
    str, typer.Option("--sglang-version", metavar="V", help="Release whose defaults hold.")
]


def check_capacities(
    words: WordsArgument = None,
    from_args: FromArgsOption = False,
    args_file: ArgsFileOption = None,
    config: ConfigOption = None,
    pool_tokens: PoolTokensOption = None,
    context_length: ContextLengthOption = None,
    gpu: GpuOption = None,
    gpu_memory: GpuMemoryOption = None,
    from_log: FromLogOption = None,
    hf_config: HfConfigOption = None,
    sglang_version: VersionOption = "0.5.23",
    output_format: FormatOption = Format.text,
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Check a server's canary capacities against its flags.

    Example: kvcanary check-capacities --gpu H100 --pool-tokens 400k --from-args -- python -m
    sglang.launch_server --model-path meta-llama/Llama-3.1-8B --context-length 131072
    """
    # deferred: --help needs none of it
    from kvcanary_cli.capacity.audit import audit
    from kvcanary_cli.capacity.request import make_request
    from kvcanary_cli.report.check_capacities import build_check_capacities, render_check_capacities

    options = emit_options(
        output_format=output_format,
        output=output,
        quiet=quiet,
        verbose=verbose,
        exit_zero=exit_zero,
        strict=strict,
    )
    config_path, command = split_words(words or [], config=config, from_args=from_args)
    request = make_request(
        config_path=config_path,
        command=command,
        args_file=args_file,
        pool_tokens=pool_tokens,
        context_length=context_length,
        gpu=gpu,
        gpu_memory=gpu_memory,
        from_log=from_log,
        hf_config=hf_config,
        version=sglang_version,
    )
    report = build_check_capacities(audit(request))
    emit(report, partial(render_check_capacities, verbose=verbose), options)


def split_words(
    words: list[str], *, config: str | None, from_args: bool
) -> tuple[str | None, list[str] | None]:
    """(config, launch command) of the words that are not options; Typer has taken the `--` between them.

    Raises: UsageError for two configs, and for a command without `--from-args`.
    """
    rest = list(words)
    if rest and (not from_args or rest[0].lower().endswith(_YAML)):
        if config is not None:
            raise UsageError(f"two configs are given, {rest[0]} and `--config` {config}", hint="give one")
        config = rest.pop(0)
    if from_args:
        return config, rest
    if rest:
        raise UsageError(
            f"one config is wanted, found {len(words)} words",
            hint="a launch command follows `--from-args --`",
        )
    return config, None
