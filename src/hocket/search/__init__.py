"""Searchers over one problem, and the certificate."""
