"""Data order, random numbers, gradient buckets and optimizers: what a resume must restore exactly. Never talks to the agent."""
