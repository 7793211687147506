"""Figures of a run: each module draws one kind from run.json and reports absent data."""
