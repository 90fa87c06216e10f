"""What agents and other programs ask of runs and capsules: a short report, and a server of tools."""
