"""What several benchmarks need: fresh processes, ratios, where figures come from, pages."""
