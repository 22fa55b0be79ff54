"""The YAML groups of a run, as data beside the packages."""
