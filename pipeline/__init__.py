"""The machine: configuration, graph, store, runner, tracking and command line."""
