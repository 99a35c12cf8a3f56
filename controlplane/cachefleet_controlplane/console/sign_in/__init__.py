"""Who a visitor is: sessions, links that sign in once, checks of forms.

failed_sign_ins   sign-ins that failed lately, by address
form_checks       where a form came from, and its fields
one_time_codes    codes for links that sign in once
visitor_sessions  sessions of signed-in visitors, in memory
"""
