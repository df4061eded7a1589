"""Policy losses (hook 4), one a file, and their options."""
