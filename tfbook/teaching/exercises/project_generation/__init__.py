"""The checks of the project on generation."""
