"""What to measure next: the study, the strategies that propose, the model they believe."""
