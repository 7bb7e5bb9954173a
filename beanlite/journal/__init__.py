"""What makes acknowledged changes durable."""
