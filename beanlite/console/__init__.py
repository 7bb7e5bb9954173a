"""What the operators' commands are made of: sources of jobs, filters, lists, changes and output."""
