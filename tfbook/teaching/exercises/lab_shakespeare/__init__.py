"""The steps of the Shakespeare lab."""
