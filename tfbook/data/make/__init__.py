"""The scripts that made the data files from their sources, one each."""
