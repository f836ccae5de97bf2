"""Leaf package: the types everything else shares. Pydantic only; imports nothing else of this project."""
