"""SGLang's entry point for the recorder: called in every process of a server, acts only if asked to.

Nothing heavy is imported here: with `KVCANARY_RECORD` unset, a server that has kvcanary installed pays for
one look at the environment.
"""

from __future__ import annotations

from kvcanary_cli.settings import record_settings


def register() -> None:
    """Register the recorder's hooks with SGLang, which applies them after this returns."""
    settings = record_settings()
    if settings is None:
        return
    from kvcanary_cli.recorders.hooks import install

    install(settings)
