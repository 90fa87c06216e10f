"""Tiny trainings with one seeded numeric fault each, benign twins of them, and the runner that scores Finitude on
both."""
