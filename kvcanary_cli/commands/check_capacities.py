"""`kvcanary check-capacities`: does a server's canary hold what its flags allow?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from kvcanary_cli.commands._options import (
    BlockSizeOption,
    ExitZeroOption,
    FormatOption,
    InputFormatOption,
    NoProgressOption,
    OutputOption,
    QuietOption,
    StrictOption,
    VerboseOption,
    emit_options,
    refuse_overwriting,
)
from kvcanary_cli.errors import UsageError
from kvcanary_cli.exits import Exit
from kvcanary_cli.output import EmitOptions, Format, emit, start_progress

if TYPE_CHECKING:
    from kvcanary_cli.capacity.audit import Audit, Reading
    from kvcanary_cli.capacity.request import Request

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
WorkloadOption = Annotated[
    str | None,
    typer.Option(
        "--workload", metavar="FILE", help="Trace, or request trace, whose need is measured step by step."
    ),
]
SolveOption = Annotated[
    str | None,
    typer.Option(
        "--solve", metavar="FLAG", help="Print only the value of this flag that makes the audit pass."
    ),
]
CompareOption = Annotated[
    bool, typer.Option("--compare", help="Compare two configs: what got better, what got worse.")
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
    workload: WorkloadOption = None,
    input_format: InputFormatOption = None,
    block_size: BlockSizeOption = None,
    solve: SolveOption = None,
    compare: CompareOption = False,
    sglang_version: VersionOption = "0.5.23",
    output_format: FormatOption = Format.text,
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_progress: NoProgressOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Check a server's canary capacities against its flags.

    Example: kvcanary check-capacities --gpu H100 --pool-tokens 400k --from-args -- python -m
    sglang.launch_server --model-path meta-llama/Llama-3.1-8B --context-length 131072
    """
    # deferred: --help needs none of it
    from kvcanary_cli.capacity.audit import Reading
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
    make = partial(
        make_request,
        args_file=args_file,
        pool_tokens=pool_tokens,
        context_length=context_length,
        gpu=gpu,
        gpu_memory=gpu_memory,
        from_log=from_log,
        hf_config=hf_config,
        version=sglang_version,
    )
    reading = Reading(input_format=input_format, block_size=block_size)
    if workload is None and reading != Reading():
        raise UsageError(
            "`--input-format` and `--block-size` are for the file of `--workload`, which is not given"
        )
    judge = partial(_judge, workload, reading, options, no_progress)
    read = [("--workload", workload), ("--args-file", args_file), ("--from-log", from_log)]
    read.append(("--hf-config", hf_config))
    if compare:
        if solve is not None:
            raise UsageError("`--compare` and `--solve` exclude each other", hint="solve each by itself")
        pair = split_pair(words or [], config=config, from_args=from_args)
        refuse_overwriting([*read, *(("CONFIG", path) for path in pair[:2])], [("--output", output)])
        compare_two(make, pair, judge, options)
    config_path, command = split_words(words or [], config=config, from_args=from_args)
    refuse_overwriting([*read, ("CONFIG", config_path)], [("--output", output)])
    request = make(config_path=config_path, command=command)
    if solve is not None:
        print_solution(request, solve)
    report = build_check_capacities(judge(request))
    emit(report, partial(render_check_capacities, verbose=verbose), options)


def _judge(
    workload: str | None, reading: Reading, options: EmitOptions, no_progress: bool, request: Request
) -> Audit:
    """The audit of one launch; serving a workload may take a while, and says so."""
    from kvcanary_cli.capacity.audit import audit

    if workload is None:
        return audit(request)
    # the report is all that stdout gets, whatever its format
    quiet = replace(options, format=Format.text)
    progress = start_progress("check-capacities", quiet, no_progress=no_progress)
    verified = 0

    def tell(steps: int, entries: int) -> None:
        nonlocal verified
        verified += entries
        progress.update(steps, None, verified, 0)

    try:
        return audit(request, workload, reading, tell)
    finally:
        progress.close()


def compare_two(
    make: Callable[..., Request],
    pair: tuple[str, str, list[str] | None],
    judge: Callable[[Request], Audit],
    options: EmitOptions,
) -> NoReturn:
    """Audit two configs, each with the same launch command on top, and report both.

    Raises: typer.Exit always.
    """
    from kvcanary_cli.report.compare_capacities import build_comparison, render_comparison

    first, second, command = pair
    audits = [judge(make(config_path=path, command=command)) for path in (first, second)]
    emit(build_comparison(*audits), render_comparison, options)


def print_solution(request: Request, flag: str) -> NoReturn:
    """Write the value of a flag that makes the audit pass, and leave.

    Raises: typer.Exit always, with FINDINGS where no value does; UsageError for an unknown flag.
    """
    from kvcanary_cli.capacity.solve_flag import solve_flag

    value = solve_flag(request, flag)
    if value is None:
        typer.echo(f"no value of {flag} alone makes this launch pass", err=True)
        raise typer.Exit(Exit.FINDINGS)
    typer.echo(value)
    raise typer.Exit(Exit.PASS)


def split_pair(words: list[str], *, config: str | None, from_args: bool) -> tuple[str, str, list[str] | None]:
    """(first config, second config, launch command that both get) of the words of a comparison.

    Raises: UsageError for anything but two configs.
    """
    paths = ([config] if config is not None else []) + words
    if len(paths) < 2 or (len(paths) > 2 and not from_args):
        raise UsageError(
            f"`--compare` takes two configs, found {len(paths)}",
            hint="kvcanary check-capacities --compare before.yaml after.yaml",
        )
    return paths[0], paths[1], paths[2:] if from_args else None


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
