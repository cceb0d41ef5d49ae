"""Sentences for the quality tests: numbers, dates, money, abbreviations, questions, names, short and long ones."""

from __future__ import annotations

SENTENCES: tuple[str, ...] = (
    "Hello, how can I help you today?",
    "Your appointment is on March 3rd at 7:30 in the morning.",
    "The total comes to $42.50, including tax.",
    "Dr. Smith will see you in room 12.",
    "I'm sorry, I didn't quite catch that. Could you say it again?",
    "The library opens at nine, closes at half past five, and stays shut on Sundays.",
    "About 65% of our customers choose the second option.",
    "Please call 555 0123 if you have any questions.",
    "Yes, of course.",
    "Katherine and her brother moved from Boston to San Francisco in 1998.",
    "Did you know that honey never spoils, even after thousands of years?",
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "First, open the settings; then, choose your language from the list.",
    "It was raining hard, so we decided to stay at home and watch an old movie about a lighthouse keeper.",
    "The temperature will drop to 15 degrees by Friday evening.",
    "Well, that's a great question, and the honest answer is that nobody knows for sure.",
    "Your order number is 4071, and it should arrive within two days.",
    "She asked whether the train to Chicago had already left the station.",
    "Could you please spell your last name for me, one letter at a time?",
    "Although the museum was crowded, the children enjoyed the dinosaurs, the rockets, and especially the giant whale"
    " that hung from the ceiling of the main hall.",
)
