"""Configuration: the typed schema of a run and its composition from defaults, plugins and overrides."""
