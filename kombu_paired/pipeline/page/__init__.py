"""``report.html``: what the tables say, for people."""
