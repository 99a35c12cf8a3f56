"""The console under ``/console``: pages for people who run a fleet, made on the server, live by server-sent events.

Every page is a client of the admin API, in this process and with the visitor's token: rights and errors are that API's.

admin_calls       the admin API, asked in this process
console_app       the application: made on the first request, ends its live streams
console_routes    all routes and what wraps them
doc_pages         pages of the documentation that alerts link to
page_headers      security headers, and the bounds of bodies
static_files      scripts and styles of the package, from memory
templating        templates, and how numbers are written in them
visit             one request of a signed-in visitor

docs/             links to pages of the documentation
figures/          what is drawn: bars, time lines, and what became of a prompt's tokens; pure
live/             the fleet as rows, rendered once for all who watch, and the stream of events
pages/            a module for each view
sign_in/          sessions, links that sign in once, and the checks of forms
static/           scripts, styles, and THIRD_PARTY.txt with what comes from npm
templates/        one for each view
"""
