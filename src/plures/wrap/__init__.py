"""Ways to change a method as a whole: a closing round, private parts, a policy for normalization layers."""
