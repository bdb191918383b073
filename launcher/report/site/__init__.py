"""What a site allows, and what that means for this user. Changes nothing."""
