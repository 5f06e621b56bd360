"""What looks at recorded runs and changes nothing that a run measures: summaries, differences, estimates, tidying up."""
