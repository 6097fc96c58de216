"""Commands whose every change can be taken back."""
