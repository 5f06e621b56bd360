"""The text domain that ALFWorld's games and our procedural households share: games, the world's rules, texts, prompts and parsing."""
