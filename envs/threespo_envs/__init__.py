"""The built-in environments: one folder each."""

from __future__ import annotations

from threespo_bench.contracts.entries import EnvironmentEntry
from threespo_bench.hookspecs import hookimpl


@hookimpl
def threespo_environments() -> list[EnvironmentEntry]:
    return [
        EnvironmentEntry(
            name="household",
            target="threespo_envs.household.environment:HouseholdEnvironment",
            defaults="threespo_envs.household:household.yaml",
            summary="procedural households with ALFWorld's tasks, texts and rules; needs no download",
            tags=("text game", "restore"),
        ),
        EnvironmentEntry(
            name="alfworld",
            target="threespo_envs.alfworld.environment:AlfworldEnvironment",
            summary="the real ALFWorld games on a pure-Python engine; env.games=FOLDER names their folder",
            tags=("text game", "restore"),
        ),
        EnvironmentEntry(
            name="webshop",
            target="threespo_envs.webshop.environment:WebShopEnvironment",
            defaults="threespo_envs.webshop:webshop.yaml",
            summary="WebShop on a pure-Python shop, with generated products; env.products=FILE names real ones",
            tags=("web", "restore"),
        ),
    ]
