"""What a page of the docs needs and nothing else: an ablation, a law, a rule for the temperature to test with."""
