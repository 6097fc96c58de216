"""What a keeper that was killed left half done is finished or taken back."""
