"""Streamed runs: how they are built, driven, reported and saved."""
