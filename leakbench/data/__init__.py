"""Real data: found or fetched, checked byte for byte, never copied per client."""
