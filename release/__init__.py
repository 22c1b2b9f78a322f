"""What a release is: built, its contents checked, and tried in environments that hold nothing else."""
