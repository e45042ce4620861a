"""What twice as much costs: images, cells, and the memory of the process that runs the sweep."""
