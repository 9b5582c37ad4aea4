"""Cleanba PPO and IMPALA: one process' part of one training run (Huang et al. 2023, arXiv 2310.00036)."""
