"""What this machine can do: facts about it, and runs of the kernels against known answers."""
