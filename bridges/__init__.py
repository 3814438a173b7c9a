"""What every front of Anabranch shares."""
