"""The ALFWorld benchmark as an environment plugin; its games are read from a folder that the user has."""
