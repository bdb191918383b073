"""The boundary between two steps: position, saves, the agreed stop. Never writes files itself."""
