"""Kinds of alarms that are not found at an open window: bad from the start, written by a step, reported late, dropped
by the script or by an exception, or in a program that has no optimizer."""
