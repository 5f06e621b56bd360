"""Policies that are there already: a run's checkpoint, a model folder, an adapter, shards of verl, a registered model; found, opened and evaluated."""
