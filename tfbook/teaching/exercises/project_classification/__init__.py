"""The checks of the project on classification."""
