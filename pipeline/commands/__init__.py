"""The subcommands of `clozeline`; `pipeline.cli` imports the one that is asked for."""
