"""Allocations that are kept, and the runs that train in them one after the other."""
