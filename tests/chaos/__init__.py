"""Real processes on real servers, killed at random: what was acknowledged is there, and nothing else is."""
