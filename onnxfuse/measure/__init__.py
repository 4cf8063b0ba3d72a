"""How long models take: in turns, with confidence intervals, node by node."""
