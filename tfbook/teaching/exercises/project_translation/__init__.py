"""The checks of the project on translation."""
