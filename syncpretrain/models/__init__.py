"""Measures of a trained stack."""
