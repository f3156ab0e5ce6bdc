"""Hash whole KV pools at memory speed: dumps (`run.scrub`) and live tensors (`live.hash_slots`)."""
