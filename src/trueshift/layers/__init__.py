"""Modules over ``functional.py``; they know nothing of models."""
