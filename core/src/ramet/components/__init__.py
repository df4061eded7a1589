"""Everything that a configuration names, built through the registries."""
