"""What each finding means: one Markdown page a code in `pages/`, read when it is asked for."""
