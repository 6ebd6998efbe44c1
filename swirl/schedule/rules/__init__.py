"""The default schedule: a recipe for phases that no recipe schedules, written from dependences, strides and extents."""
