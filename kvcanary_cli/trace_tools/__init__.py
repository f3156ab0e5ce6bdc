"""Work on trace files: check one without running it, cut a part out, shrink a failing one."""
