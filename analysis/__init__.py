"""Records and foreign logs to curves, scores, statistics, tables, figures and verdicts. Never imports JAX."""
