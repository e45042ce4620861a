"""A large folder of photographs: how fast its images reach the device, and a network."""
