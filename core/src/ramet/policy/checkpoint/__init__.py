"""What a checkpoint holds, how it is written, verified and found again."""
