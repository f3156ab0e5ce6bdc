"""`kvcanary scrub`."""

from __future__ import annotations

from typing import Annotated

import typer

from kvcanary_cli.commands._options import (
    DeviceOption,
    ExitZeroOption,
    FormatOption,
    NoProgressOption,
    OutputOption,
    QuietOption,
    StrictOption,
    ThreadsOption,
    VerboseOption,
    emit_options,
)
from kvcanary_cli.output import Format, emit, start_progress


def scrub(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Dump of a KV pool, safetensors.")],
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="FILE", help="Dump, or hashes of --write-hashes, to compare with."),
    ] = None,
    tensors: Annotated[
        list[str] | None,
        typer.Option("--tensors", metavar="GLOB", help="Tensors to take, all if not given; may be repeated."),
    ] = None,
    page_size: Annotated[
        int,
        typer.Option("--page-size", metavar="N", min=1, help="Slots a page: tensors are [pages, N, ...]."),
    ] = 1,
    flat: Annotated[
        bool, typer.Option("--flat", help="With --page-size: tensors are [slots, ...] all the same.")
    ] = False,
    written: Annotated[
        list[str] | None,
        typer.Option(
            "--written", metavar="RANGES", help="Slots that may differ, as 0-15,20; may be repeated."
        ),
    ] = None,
    only_slots: Annotated[
        list[str] | None,
        typer.Option("--only-slots", metavar="RANGES", help="Slots to compare, all if not given."),
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="Count NaN and infinity too, on the CPU.")] = False,
    write_hashes: Annotated[
        str | None, typer.Option("--write-hashes", metavar="FILE", help="Keep the hashes, for --against.")
    ] = None,
    chunk_mib: Annotated[
        int | None,
        typer.Option("--chunk-mib", metavar="N", min=1, help="MiB read at once; 16 on a CPU, 256 on a GPU."),
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    output_format: FormatOption = Format.text,
    output: OutputOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    no_progress: NoProgressOption = False,
    exit_zero: ExitZeroOption = False,
    strict: StrictOption = False,
) -> None:
    """Hash a dumped KV pool, and compare two dumps.

    Example: kvcanary scrub after.safetensors --against before.safetensors --written 4096-4111
    """
    # deferred: --help must not pay for them
    from functools import partial

    from kvcanary_cli.commands._scrub_run import ScrubWords, run_scrub
    from kvcanary_cli.report.scrub_text import render_scrub

    options = emit_options(
        output_format=output_format,
        output=output,
        quiet=quiet,
        verbose=verbose,
        exit_zero=exit_zero,
        strict=strict,
    )
    words = ScrubWords(
        file=file,
        against=against,
        tensors=tuple(tensors or ()),
        page_size=page_size,
        flat=flat,
        written=tuple(written or ()),
        only_slots=tuple(only_slots or ()),
        values=values,
        write_hashes=write_hashes,
        chunk_mib=chunk_mib,
        device=device,
        threads=threads,
        output=output,
    )
    progress = start_progress("scrub", options, no_progress=no_progress, inputs=words.inputs())
    try:
        report = run_scrub(words, progress)
    finally:
        progress.close()
    emit(report, partial(render_scrub, verbose=verbose), options)
