"""Publishes stored reports of many machines and commits as a static site."""
