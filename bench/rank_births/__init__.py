"""Births of bad values on one rank of several: does each report name the step, the rank and the line?"""
