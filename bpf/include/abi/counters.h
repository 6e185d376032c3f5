/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/* counters: every drop under its reason, every event under its name. */
#pragma once

/*
 * Why a packet was dropped: return value, counter and name at once.
 * X(NAME, "name", "what it means, and what to do")
 */
#define DROP_REASONS(X)                                                                        \
	X(NONE, "none", "not a drop")                                                          \
	X(MALFORMED, "malformed", "headers that contradict the packet's length")               \
	X(FRAGMENT, "fragment", "an IP fragment: look for a small MTU on the path")            \
	X(IP_OPTIONS, "ip-options", "an IP header with options")                               \
	X(BAD_FLAGS, "bad-flags", "a combination of TCP flags that no stack sends")            \
	X(BAD_COOKIE, "bad-cookie", "no flow, and its cookie is forged or too old")            \
	X(NO_COOKIE_KEY, "no-cookie-key", "the daemon has not set this hour's cookie key")     \
	X(HANDSHAKE_ACK, "handshake-ack", "the bare ACK of a handshake: expected")             \
	X(REPEATED, "repeated", "a copy of a packet that is being handed over")                \
	X(CAME_AGAIN, "came-again", "what a dead dispatcher had had, of a client that is asked how far it has come") \
	X(NO_BACKEND, "no-backend", "its record names a backend that is not there")            \
	X(NO_ROUTE, "no-route", "no route to the backend: check routes and forwarding")        \
	X(NO_NEIGHBOUR, "no-neighbour", "the backend's link address is not known (yet)")       \
	X(TOO_BIG, "too-big", "no room for the encapsulation: lower gro_max_size or the MTU")  \
	X(REWRITE, "rewrite", "the kernel refused to change the packet (out of memory)")       \
	X(ICMP_NO_FLOW, "icmp-no-flow", "an ICMP error about a flow that we do not know")      \
	X(BAD_ENCAP, "bad-encapsulation", "to our port, but not our encapsulation")            \
	X(BAD_TAG, "bad-tag", "encapsulated without a valid tag: forged, or another key")      \
	X(STALE_EPOCH, "stale-epoch", "late news of a connection that has moved or ended")     \
	X(EARLY, "early", "overtook the packet that sets its connection up; it comes again")   \
	X(NO_LISTENER, "no-listener", "no server listens here: start it")                      \
	X(ACCEPT_QUEUE_FULL, "accept-queue-full", "the server accepts too slowly")             \
	X(NOT_REBUILT, "not-rebuilt", "the kernel refused to rebuild: see trapeze doctor")     \
	X(MOVED, "moved", "from a socket whose connection another backend has now: expected")    \
	X(SERVER_CLOSE, "server-close", "a server closed while it owed nothing, and its client need not hear of it: expected") \
	X(OLDER, "older-range", "a request for a backend that still sends an earlier answer") \
	X(VACANT, "vacant", "for a connection that its server has closed, and is no request: expected") \
	X(MARTIAN, "martian", "a SYN from an address that no client has: forged") \
	X(NO_DISPATCHER, "no-dispatcher", "no dispatcher is there to have it: see trapeze status") \
	X(NO_SPLICE, "no-splice", "from a server, of no connection that is known here") \
	X(UNHEARD_OF, "unheard-of", "its keeper has yet to hear of its connection; it comes again: expected") \
	X(UNREAD, "unread", "an acknowledgement of more than could be given again, were its server to close unread: expected")

enum drop_reason {
#define X(NAME, name, text) DROP_##NAME,
	DROP_REASONS(X)
#undef X
	DROP_REASON_COUNT
};

/* What else is counted, per CPU. */
#define EVENTS(X)                                                       \
	X(SYN, "syn-answered", "SYNs answered with a cookie")           \
	X(COOKIE_OK, "cookie-valid", "handshakes proved by their cookie") \
	X(DECIDED, "decided", "connections placed by a decision that the daemon made before") \
	X(STAYED, "stayed", "later requests decided in the data path: the owner has them") \
	X(MOVED, "moved", "later requests decided in the data path: another backend has them") \
	X(TO_DAEMON, "to-daemon", "packets given to the daemon")        \
	X(FORWARDED, "forwarded", "packets forwarded to backends")      \
	X(ICMP_FORWARDED, "icmp-forwarded", "ICMP errors forwarded")    \
	X(RECEIVED, "received", "encapsulated packets accepted")        \
	X(REBUILT, "rebuilt", "connections given to a listener")        \
	X(REPLACED, "replaced", "leftover sockets removed for a new connection") \
	X(REFUSED, "refused", "connections given back to the dispatcher") \
	X(CONFIRMED, "confirmed", "rebuilt connections that have answered") \
	X(GHOST, "ghost", "requests that the network repeated after their connection had ended") \
	X(GIVEN_UP, "given-up", "connections that left for another backend") \
	X(RESUMED, "resumed", "connections taken up again, whose flow had come back") \
	X(HANDED_ON, "handed-on", "packets sent on to the next backend") \
	X(HELD, "held", "connections asked for that could not leave yet") \
	X(HALF_PIPE, "half-pipe", "of these, with bytes on the way to their client") \
	X(GC, "gc", "acknowledgements sent on to older owners") \
	X(SEATED, "seated", "flows that came back while their older socket here was needed still") \
	X(RETIRED, "retired", "older owners whose client has had all of theirs") \
	X(UNREAD, "unread", "requests that a server closed on without reading them, given to it or another again") \
	X(RETRIED, "retried", "idempotent requests that a server closed on without a word, given to it or another again") \
	X(VACATED, "vacated", "connections that their server closed, and their client keeps") \
	X(BEGUN, "begun", "answers begun that may outlive this backend") \
	X(BEGUN_UNSEEN, "begun-unseen", "answers that may not, for their heads came in several packets") \
	X(ADOPTED, "taken-over", "answers of other backends gone on with here") \
	X(ASKED_ANEW, "asked-anew", "of these, those whose server here was asked once more for what was left")         \
	X(NOT_SAME, "not-same", "answers of other backends of which the rest was not provably the same here: reset") \
	X(FORSAKEN, "forsaken", "answers begun here that another backend goes on with") \
	X(UNFOLLOWED, "unfollowed", "connections whose answers cannot be followed any more") \
	X(SPRAYED, "sprayed", "packets sent on to dispatchers") \
	X(ENCAPSULATED, "encapsulated", "of these, to dispatchers behind a router") \
	X(UNPACKED, "unpacked", "packets that a spray has encapsulated") \
	X(PASSED, "passed", "packets passed to the dispatcher that keeps their flow") \
	X(ACCEPTED, "accepted", "packets that other dispatchers have passed here") \
	X(ENTRUSTED, "entrusted", "of the connections decided in the data path, those whose record went to another dispatcher with the first packet") \
	X(IN_TRUST, "in-trust", "first packets with records of connections that other dispatchers keep, sent on") \
	X(BEAT, "beat-answered", "heartbeats answered") \
	X(TO_SERVER, "spliced-to-server", "clients' packets rewritten for spliced servers") \
	X(TO_CLIENT, "spliced-to-client", "packets of spliced servers rewritten for clients") \
	X(SPLIT, "split", "spliced connections whose server's host has them rewritten from here on") \
	X(SET_AGAIN, "set-again", "addresses and sysctls that somebody had taken away, set again by the daemon") \
	X(TO_OWN_HOST, "to-own-host", "packets for a backend on the dispatcher's own host")

enum event {
#define X(NAME, name, text) EVENT_##NAME,
	EVENTS(X)
#undef X
	EVENT_COUNT
};
