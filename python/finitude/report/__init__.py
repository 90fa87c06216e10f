"""What is said of a bad step: findings from its trace, samples and settings behind it, the report, one report of many
processes."""
