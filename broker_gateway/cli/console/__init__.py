"""`lakebroker console`: a web page over gateways and a lake.

| file | |
|---|---|
| `command.py` | the command: options, what is refused before it starts |
| `asking.py`, `lake_lists.py`, `lake_engine.py` | questions to gateways and lake, and what brokers list, of a lake alone; errors are AskError with a sentence |
| `facts.py`, `stories.py` | what the pages show, without the page; messages with their copies and what they were sent again as |
| `poll.py`, `history.py` | one poll for all tabs, and the last half hour of it |
| `workers.py` | questions of tabs, on threads: how many, and how long they are waited for |
| `replays.py` | dead letters sent again: counted first, then done on a thread of its own, if it is allowed at all |
| `text.py` | text from elsewhere, made visible and cut |
| `gate.py` | who gets an answer at all: host, origin, token, number of tabs, headers |
| `names.py` | by which names browsers reach it |
| `connections.py`, `log_limit.py` | how long a request is waited for, how many connections one address has; how much is logged of what tabs send |
| `server.py` | the port, and the page's library: NiceGUI, which nothing else imports but `pages/` |
| `pages/` | a file for each page; `parts.py` are their common parts |
"""
