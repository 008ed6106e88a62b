"""The leaderboard: one card a defense and data set, measured, checked by measuring it again, and ranked on a page."""
