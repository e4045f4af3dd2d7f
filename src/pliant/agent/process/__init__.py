"""Worker processes: how they are started, watched, forked from a template and ended."""
