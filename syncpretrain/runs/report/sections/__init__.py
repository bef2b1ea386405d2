"""Sections of the report of a run: each is made of the files of the run alone."""
