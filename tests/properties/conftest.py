"""How many hybrids are tried: `--hypothesis-profile=long` tries many thousands, and new ones each time."""

from hypothesis import HealthCheck, settings

COMMON = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False)
settings.register_profile("short", COMMON, max_examples=500, derandomize=True)
settings.register_profile("long", COMMON, max_examples=10_000)
settings.load_profile("short")
