"""`kvcanary simulate`: serve a request trace with a modelled scheduler."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from typing import Annotated

import typer

from kvcanary_cli.commands._options import (
    ExitZeroOption,
    FormatOption,
    NoProgressOption,
    QuietOption,
    StrictOption,
    VerboseOption,
    emit_options,
)
from kvcanary_cli.output import Format, emit, start_progress


def _number(flag: str, text: str, *, metavar: str = "N") -> typer.models.OptionInfo:
    """An option for a whole number from 1 on."""
    option: typer.models.OptionInfo = typer.Option(
        flag, metavar=metavar, min=1, help=text, show_default=False
    )
    return option


def simulate(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Request trace; - is stdin.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Write the run as trace v1, .gz or .zst to compress it; - is stdout, the report then is on stderr.",
        ),
    ] = None,
    time_series: Annotated[
        str | None,
        typer.Option(
            "--time-series", metavar="FILE", help="Write a row for each second: .json for JSON, else CSV."
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", metavar="sglang|vllm", help="Whose rules; the config's, else sglang."),
    ] = None,
    capacities: Annotated[
        str | None,
        typer.Option("--capacities", metavar="FILE", help="Config with pool, server args and `simulate`."),
    ] = None,
    pool_tokens: Annotated[
        int | None, _number("--pool-tokens", "Tokens that the pool holds; 400,000.")
    ] = None,
    pool_slots: Annotated[
        int | None, _number("--pool-slots", "The same in slots, page 0 (block 0 of vLLM) included.")
    ] = None,
    page_size: Annotated[int | None, _number("--page-size", "Slots a page, of a block in vLLM; 16.")] = None,
    max_running_requests: Annotated[
        int | None, _number("--max-running-requests", "sglang: requests that run at the same time; 64.")
    ] = None,
    chunked_prefill_size: Annotated[
        int | None,
        typer.Option(
            "--chunked-prefill-size",
            metavar="N",
            help="sglang: prompt tokens of a forward, -1 for no limit; 8,192.",
            show_default=False,
        ),
    ] = None,
    max_prefill_tokens: Annotated[
        int | None, _number("--max-prefill-tokens", "sglang: no further prompt joins beyond this; 16,384.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, _number("--max-num-batched-tokens", "vllm: tokens of a forward; 8,192.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, _number("--max-num-seqs", "vllm: requests that run at the same time; 256.")
    ] = None,
    no_prefix_cache: Annotated[
        bool, typer.Option("--no-prefix-cache", help="Nothing is kept for later prompts.")
    ] = False,
    prefill_rate: Annotated[
        float | None,
        typer.Option(
            "--prefill-rate", metavar="TOKENS/S", help="Prompt tokens a second; 20,000.", show_default=False
        ),
    ] = None,
    decode_step_ms: Annotated[
        float | None,
        typer.Option("--decode-step-ms", metavar="MS", help="Time of a decode step; 25.", show_default=False),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            metavar="CSV",
            help="Fit both costs to this time series of a real run, and compare the model with it.",
        ),
    ] = None,
    limit_requests: Annotated[
        int | None, _number("--limit-requests", "Serve the first N requests of the file.")
    ] = None,
    limit_steps: Annotated[int | None, _number("--limit-steps", "Stop after N forwards.")] = None,
    input_format: Annotated[
        str | None,
        typer.Option("--input-format", metavar="NAME", help="Format of FILE; by content if not given."),
    ] = None,
    block_size: Annotated[
        int | None, _number("--block-size", "Tokens that a block id names, where FILE does not say.")
    ] = None,
    skip_bad_lines: Annotated[
        bool,
        typer.Option(
            "--skip-bad-lines", help="Go on after lines that can't be read; the run can't pass then."
        ),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", min=0, help="Seed of made-up token ids; 0.", show_default=False),
    ] = None,
    output_format: FormatOption = Format.text,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_progress: NoProgressOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Serve a request trace with a model of a scheduler.

    Reports the peaks that a server would see. Nothing is written unless --output or --time-series ask for it.

    Example: kvcanary simulate requests.jsonl --scheduler vllm --pool-tokens 41392
    """
    # deferred: --help must not pay for them
    from kvcanary_cli.commands._simulate_run import SimulateWords, run_simulate
    from kvcanary_cli.report.simulate import render_simulate

    words = SimulateWords(
        file=file,
        output=output,
        time_series=time_series,
        scheduler=scheduler,
        capacities=capacities,
        pool_tokens=pool_tokens,
        pool_slots=pool_slots,
        page_size=page_size,
        max_running_requests=max_running_requests,
        chunked_prefill_size=chunked_prefill_size,
        max_prefill_tokens=max_prefill_tokens,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        no_prefix_cache=no_prefix_cache,
        prefill_rate=prefill_rate,
        decode_step_ms=decode_step_ms,
        calibrate=calibrate,
        limit_requests=limit_requests,
        limit_steps=limit_steps,
        input_format=input_format,
        block_size=block_size,
        skip_bad_lines=skip_bad_lines,
        seed=seed,
    )
    options = emit_options(
        output_format=output_format, quiet=quiet, verbose=verbose, exit_zero=exit_zero, strict=strict
    )
    stdout = sys.stdout
    # the trace has stdout to itself, so that it can be piped
    with redirect_stdout(sys.stderr) if output == "-" else nullcontext():
        progress = start_progress("simulate", options, no_progress=no_progress, inputs=words.inputs())
        try:
            report = run_simulate(words, progress, stdout)
        finally:
            progress.close()
        emit(report, lambda found: render_simulate(found, verbose=verbose), options)
