"""The scheduler: the elected leader of a cell turns requests, reports and verdicts into facts on the log."""
