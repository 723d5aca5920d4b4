"""What a file says, judged before torch makes anything of it."""
