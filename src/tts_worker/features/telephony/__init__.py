"""Telephone calls: media streams of Twilio and Telnyx, joined to sessions. See ``docs/telephony.md``."""
