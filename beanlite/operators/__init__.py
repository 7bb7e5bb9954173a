"""What the operators' commands do: where they look, which jobs they mean, and how they show what they found."""
