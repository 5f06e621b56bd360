"""The engine ``verl``: generation and updates by verl's workers on Ray, driven by the same loop as every other engine. All that imports verl or Ray is here."""
