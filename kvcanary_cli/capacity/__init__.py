"""Launch flags and model shapes to canary capacities, memory, rules and fixes, without numpy or torch.

What was given (`request`) is resolved (`setup`), sized (`sizes`, by `formula`), judged (`rules`) and, where it
fails, mended (`fixes`); `audit` does all of it. Values are NamedTuples and not dataclasses here: making thirty
dataclasses takes 15 ms, a tenth of the whole command.
"""
