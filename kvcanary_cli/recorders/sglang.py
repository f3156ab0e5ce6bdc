"""SGLang's entry point for recorder and dumps: called in every process of a server, acts only if asked to.

Nothing heavy is imported here: with `KVCANARY_RECORD` and `KVCANARY_DUMP` unset, a server that has kvcanary
installed pays for a look at the environment.
"""

from __future__ import annotations

from kvcanary_cli.settings import dump_settings, record_settings


def register() -> None:
    """Register the hooks that are asked for with SGLang, which applies them after this returns."""
    recording, dumping = record_settings(), dump_settings()
    if recording is not None:
        from kvcanary_cli.recorders import hooks

        hooks.install(recording)
    if dumping is not None:
        from kvcanary_cli.recorders import dumps

        dumps.install(dumping)
