"""Advantage estimators (hook 3), one a file, and what they share: groups, time steps, whitening."""
