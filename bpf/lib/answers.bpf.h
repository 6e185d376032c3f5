/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-3-Clause) */
/*
 * answers: where each of a server's answers ends (RFC 9112 6.3), found by looking
 * at every byte of heads and chunk lines that leaves, in order and once. Bodies
 * are counted, not read: a packet inside a body of known length costs an addition.
 *
 *              .---------------- 1xx ----------------.
 *              v                                     |
 *   (end) -> STATUS -> FIELDS -> empty line ---------+--> ENDLESS  (101; until close, counted)
 *     ^                                              |
 *     +---- no body, or length 0 --------------------+
 *     +---- BODY <------- Content-Length ------------+
 *     '---- TRAILER <- 0 - CHUNK_SIZE <-- chunked ---'
 *                           |     ^
 *                           v     |
 *                    CHUNK_DATA -> CHUNK_END
 *
 * What is strange makes it LOST, for good: nobody guesses where an answer ends.
 */
#pragma once

#include "words.bpf.h"

/* So much is read at a time. */
#define PIECE_MAX 512
/* Any place within may be read from, as far as a line is kept. */
#define PIECE_MASK 1023
#define PIECE_ROOM (PIECE_MASK + 1 + LINE_ROOM)

/*
 * What is looked at: the beginning of an unfinished line, and behind it what comes
 * now. The places are here and not on the stack, where the verifier would follow
 * their values step by step.
 */
struct piece {
	__u32 length; /* of the piece */
	__u32 line; /* where in it the line begins */
	__u32 at; /* next to be looked at */
	__u32 offset; /* in the frame, of what comes behind the piece */
	__u32 left; /* how much that is */
	__u32 head_at; /* in the frame, where the latest head begins; 0: not in this one */
	__u32 head_end; /* and where the latest one has ended */
	__u8 bytes[PIECE_ROOM];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct piece);
} pieces SEC(".maps");

/* A walk over a packet's payload, piece by piece, in the piece from line end to line end. */
struct walk {
	context_t *ctx;
	struct answers *answers;
	struct piece *piece;
};

/* A server's segment, as far as it matters here. */
struct said {
	__u32 seq; /* of its first byte */
	__u32 ack; /* what the server's socket has had of the client */
	__u32 offset; /* in the frame, of its payload */
	__u32 payload;
};

static __always_inline __u64 piece_word(const __u8 *piece, __u32 at)
{
	__u64 word;

	__builtin_memcpy(&word, piece + (at & PIECE_MASK), 8);
	return word;
}

static __always_inline __u8 piece_byte(const __u8 *piece, __u32 at)
{
	return piece[at & PIECE_MASK];
}

static __always_inline int lose(struct answers *answers)
{
	answers->phase = ANSWER_LOST;
	count_event(EVENT_UNFOLLOWED);
	return 0;
}

static __always_inline void end_answer(struct answers *answers)
{
	answers->finished++;
	answers->unread = 0;
	answers->flags = (answers->flags & (ANSWER_CLOSING | ANSWER_AHEAD)) | ANSWER_ENDED;
	answers->phase = ANSWER_STATUS;
}

static __always_inline bool is_digit(__u8 byte)
{
	return byte >= '0' && byte <= '9';
}

/* "HTTP/1.1 200 ...": RFC 9112 4. */
static __always_inline int read_status(struct answers *answers, const __u8 *piece, __u32 at, __u32 length)
{
	__u64 version = piece_word(piece, at), status = piece_word(piece, at + 8);
	__u8 minor = version >> 56, hundreds = status >> 8, tens = status >> 16, ones = status >> 24;
	__u32 code = (hundreds - '0') * 100 + (tens - '0') * 10 + (ones - '0');

	if (length < 12 || (version & 0xffffffffffffffull) != 0x2e312f50545448ull || (__u8)status != ' ' ||
	    !is_digit(minor) || hundreds < '1' || hundreds > '9' || !is_digit(tens) || !is_digit(ones) ||
	    (length > 12 && (__u8)(status >> 32) != ' '))
		return lose(answers);
	/* It said that it would close, and goes on speaking. */
	if (answers->flags & ANSWER_CLOSING)
		return lose(answers);
	if (minor == '0')
		answers->flags |= ANSWER_OLD;
	if (code == 101)
		answers->flags |= ANSWER_TUNNEL;
	/* Behind 100 comes the rest of this request; behind another it may be the next one. */
	else if (code < 200)
		answers->flags |= code == 100 ? ANSWER_INTERIM : ANSWER_INTERIM | ANSWER_AHEAD;
	else if (code == 204 || code == 304 || answers->flags & ANSWER_TO_HEAD)
		answers->flags |= ANSWER_BODILESS;
	answers->phase = ANSWER_FIELDS;
	return 0;
}

/* A number in the piece; the verifier sees one digit of it. */
struct number {
	const __u8 *piece;
	__u32 at;
	__u32 digits;
	__u64 value;
};

static long decimal_digit(__u64 index, struct number *number)
{
	__u8 byte = piece_byte(number->piece, number->at);

	if (!is_digit(byte))
		return 1;
	number->value = number->value * 10 + (byte - '0');
	number->digits++;
	number->at++;
	return 0;
}

static long hexadecimal_digit(__u64 index, struct number *number)
{
	__u8 byte = piece_byte(number->piece, number->at), letter = byte | 0x20;

	if (is_digit(byte))
		number->value = number->value << 4 | (byte - '0');
	else if (letter >= 'a' && letter <= 'f')
		number->value = number->value << 4 | (letter - 'a' + 10);
	else
		return 1;
	number->digits++;
	number->at++;
	return 0;
}

/* So many digits fit, and no more. */
#define DECIMAL_MAX 18
#define HEXADECIMAL_MAX 15

static long blank(__u64 index, struct number *number)
{
	__u8 byte = piece_byte(number->piece, number->at);

	if (byte != ' ' && byte != '\t')
		return 1;
	number->at++;
	return 0;
}

static __always_inline int read_length(struct answers *answers, const __u8 *piece, __u32 at, __u32 end)
{
	struct number number = { .piece = piece, .at = at };

	/* By far the most. */
	if (piece_byte(piece, at) == ' ')
		number.at++;
	if (!is_digit(piece_byte(piece, number.at)))
		bpf_loop(LINE_ROOM, blank, &number, 0);
	bpf_loop(DECIMAL_MAX, decimal_digit, &number, 0);
	if (number.at < end)
		bpf_loop(LINE_ROOM, blank, &number, 0);
	/* A list, or a second one, may say two things. */
	if (!number.digits || number.at != end || answers->flags & (ANSWER_LENGTH | ANSWER_CHUNKED))
		return lose(answers);
	answers->flags |= ANSWER_LENGTH;
	answers->remaining = number.value;
	return 0;
}

static long blank_before(__u64 index, struct number *number)
{
	__u8 byte = piece_byte(number->piece, number->at - 1);

	if (byte != ' ' && byte != '\t')
		return 1;
	number->at--;
	return 0;
}

/*
 * The last coding has to be "chunked"; without, the answer ends when the server closes. Blanks
 * behind it are no part of the field (RFC 9110 5.5).
 */
static __always_inline int read_coding(struct answers *answers, const __u8 *piece, __u32 at, __u32 end)
{
	struct number number = { .piece = piece, .at = end };
	__u8 before;

	/* Hardly any has. */
	if ((piece_byte(piece, end - 1) | 0x20) != 'd') {
		bpf_loop(LINE_ROOM, blank_before, &number, 0);
		end = number.at;
	}
	before = piece_byte(piece, end - 8);
	if (end < at + 7 || answers->flags & (ANSWER_LENGTH | ANSWER_CHUNKED | ANSWER_OLD) ||
	    ((piece_word(piece, end - 7) | LOWER_CASE) & 0xffffffffffffffull) != 0x64656b6e756863ull ||
	    (before != ' ' && before != ',' && before != ':' && before != '\t'))
		return lose(answers);
	answers->flags |= ANSWER_CHUNKED;
	return 0;
}

/* The options that a Connection field lists, in any case: RFC 9110 7.6.1. */
struct options_scan {
	const __u8 *piece;
	__u32 at;
	__u32 end;
	__u32 length; /* of the option, so far */
	__u32 flags; /* ANSWER_* of those that ended */
	__u64 low; /* its last eight bytes, and what came before */
	__u64 high;
};

static long scan_option(__u64 index, struct options_scan *scan)
{
	bool over = scan->at >= scan->end;
	__u8 byte = over ? ',' : piece_byte(scan->piece, scan->at);

	scan->at++;
	if (byte == ',') {
		if (scan->length == 5 && scan->low == 0x636c6f7365ull)
			scan->flags |= ANSWER_CLOSING;
		if (scan->length == 10 && scan->low == 0x65702d616c697665ull && scan->high == 0x6b65)
			scan->flags |= ANSWER_KEEP;
		scan->length = scan->low = scan->high = 0;
		return over;
	}
	if (byte == ' ' || byte == '\t')
		return 0;
	scan->high = scan->high << 8 | scan->low >> 56;
	scan->low = scan->low << 8 | byte | 0x20;
	scan->length++;
	return 0;
}

static __always_inline int read_connection_field(struct answers *answers, const __u8 *piece, __u32 at, __u32 end)
{
	struct options_scan scan = { .piece = piece, .at = at, .end = end };

	/* By far the most. */
	if (end == at + 11 && (piece_word(piece, at) | LOWER_CASE) == 0x6c612d7065656b20ull &&
	    (piece_word(piece, at + 3) | LOWER_CASE) == 0x6576696c612d7065ull) {
		answers->flags |= ANSWER_KEEP;
		return 0;
	}
	bpf_loop(LINE_ROOM + 1, scan_option, &scan, 0);
	answers->flags |= scan.flags;
	return 0;
}

static __always_inline int end_head(struct answers *answers)
{
	__u32 flags = answers->flags;

	if (flags & ANSWER_INTERIM) {
		answers->flags = (flags & ~ANSWER_OF_HEAD) | ANSWER_MIDWAY;
		answers->phase = ANSWER_STATUS;
		return 0;
	}
	if (flags & ANSWER_OLD && !(flags & ANSWER_KEEP))
		answers->flags |= ANSWER_CLOSING;
	if (flags & ANSWER_TUNNEL) {
		answers->phase = ANSWER_ENDLESS;
		answers->remaining = 0;
	} else if (flags & ANSWER_BODILESS) {
		end_answer(answers);
	} else if (flags & ANSWER_CHUNKED) {
		answers->phase = ANSWER_CHUNK_SIZE;
	} else if (!(flags & ANSWER_LENGTH)) {
		answers->phase = ANSWER_ENDLESS;
		answers->remaining = ANSWER_UNTIL_CLOSE;
	} else if (answers->remaining) {
		answers->phase = ANSWER_BODY;
	} else {
		end_answer(answers);
	}
	return 0;
}

/* A field's name has been seen, `length` long: its value begins behind the colon. */
static __always_inline bool has_value(const __u8 *piece, __u32 at, __u32 length, __u32 end)
{
	return at + length < end && piece_byte(piece, at + length) == ':';
}

/* RFC 9112 5: only the three fields that tell where the answer ends matter. */
static __always_inline int read_field(struct answers *answers, const __u8 *piece, __u32 at, __u32 end)
{
	__u64 first = piece_word(piece, at), second, third;
	__u32 name;

	if (end == at)
		return end_head(answers);
	/* A line that goes on from the one before: obsolete, and understood in two ways (5.2). */
	if ((__u8)first == ' ' || (__u8)first == '\t')
		return lose(answers);
	first |= LOWER_CASE;
	/* "content-", "transfer", "connecti" */
	if (first != 0x2d746e65746e6f63ull && first != 0x726566736e617274ull && first != 0x697463656e6e6f63ull)
		return 0;
	second = piece_word(piece, at + 8) | LOWER_CASE;
	third = piece_word(piece, at + 16) | LOWER_CASE;
	if (first == 0x2d746e65746e6f63ull && (second & 0xffffffffffffull) == 0x6874676e656cull)
		name = 14;
	else if (first == 0x726566736e617274ull && second == 0x6e69646f636e652dull && (__u8)third == 'g')
		name = 17;
	else if (first == 0x697463656e6e6f63ull && (second & 0xffff) == 0x6e6f)
		name = 10;
	else
		return 0;
	if (!has_value(piece, at, name, end)) {
		/* A space before the colon: some cut it off, some do not know the field then. */
		__u8 behind = piece_byte(piece, at + name);

		return at + name < end && (behind == ' ' || behind == '\t') ? lose(answers) : 0;
	}
	if (end - at >= LINE_ROOM - 1)
		return lose(answers);
	if (name == 14)
		return read_length(answers, piece, at + 15, end);
	if (name == 17)
		return read_coding(answers, piece, at + 18, end);
	return read_connection_field(answers, piece, at + 11, end);
}

/* RFC 9112 7.1. What is behind an extension does not matter. */
static __always_inline int read_chunk_size(struct answers *answers, const __u8 *piece, __u32 at)
{
	struct number number = { .piece = piece, .at = at };
	__u8 behind;

	bpf_loop(HEXADECIMAL_MAX, hexadecimal_digit, &number, 0);
	behind = piece_byte(piece, number.at);
	if (!number.digits || (behind != '\r' && behind != ';' && behind != ' ' && behind != '\t'))
		return lose(answers);
	answers->remaining = number.value;
	answers->phase = number.value ? ANSWER_CHUNK_DATA : ANSWER_TRAILER;
	return 0;
}

/* A line ends: its LF is at `lf`. */
static __noinline int end_answers_line(struct answers *answers, const __u8 *piece, __u32 at, __u32 lf)
{
	__u32 end = lf;
	bool cr;

	if (!answers || !piece)
		return 0;
	cr = lf > at && piece_byte(piece, lf - 1) == '\r';
	if (cr)
		end--;
	switch (answers->phase) {
	case ANSWER_STATUS:
		return read_status(answers, piece, at, end - at);
	case ANSWER_FIELDS:
		return read_field(answers, piece, at, end);
	case ANSWER_CHUNK_SIZE:
		return read_chunk_size(answers, piece, at);
	case ANSWER_CHUNK_END:
		if (!cr || end != at)
			return lose(answers);
		answers->phase = ANSWER_CHUNK_SIZE;
		return 0;
	default: /* the trailer: as a head's fields, of which none matters */
		if (end == at)
			end_answer(answers);
		return 0;
	}
}

/* The line that the piece ends in is kept, as far as there is room. */
static __always_inline void keep_line(struct answers *answers, struct piece *piece)
{
	__u32 length = piece->length - piece->line;

	if (piece->line >= piece->length) {
		answers->line_length = 0;
		return;
	}
	answers->line_length = length < LINE_ROOM ? length : LINE_ROOM;
	__builtin_memcpy(answers->line, piece->bytes + (piece->line & PIECE_MASK), LINE_ROOM);
}

/* Behind what is kept of its line. False: the packet cannot be read. */
static __always_inline bool load_piece(context_t *ctx, struct answers *answers, struct piece *piece)
{
	__u32 kept = answers->line_length, length = piece->left;

	if (kept > LINE_ROOM)
		kept = LINE_ROOM;
	if (length > PIECE_MAX)
		length = PIECE_MAX;
	if (kept)
		__builtin_memcpy(piece->bytes, answers->line, LINE_ROOM);
	barrier_var(length);
	if (!length || length > PIECE_MAX || context_load(ctx, piece->offset, piece->bytes + kept, length))
		return false;
	answers->line_length = 0;
	piece->offset += length;
	piece->left -= length;
	piece->line = 0;
	piece->at = kept;
	piece->length = kept + length;
	return true;
}

/* Is this in an answer that ends when its server closes? */
static __always_inline bool is_until_close(const struct answers *answers)
{
	return answers->phase == ANSWER_ENDLESS && answers->remaining;
}

static __always_inline void end_counted(struct answers *answers)
{
	if (answers->phase == ANSWER_BODY)
		end_answer(answers);
	else
		answers->phase = ANSWER_CHUNK_END;
}

/* Counted bytes, in the piece and behind it. */
static __always_inline long skip_counted(struct answers *answers, struct piece *piece)
{
	__u32 in_piece = piece->length - piece->at, there = in_piece + piece->left;
	__u32 skipped = answers->remaining < there ? answers->remaining : there;

	answers->remaining -= skipped;
	if (skipped <= in_piece) {
		piece->at += skipped;
	} else {
		piece->at = piece->length;
		piece->offset += skipped - in_piece;
		piece->left -= skipped - in_piece;
	}
	piece->line = piece->at;
	if (answers->remaining)
		return 1;
	end_counted(answers);
	return 0;
}

/* Which byte of the word the first of them is. */
static __always_inline __u32 first_of(__u64 high_bits)
{
	return ((high_bits & -high_bits) >> 7) * 0x0001020304050607ull >> 56;
}

#define WORDS_A_STEP 5

static long walk_on(__u64 index, struct walk *walk)
{
	struct answers *answers = walk->answers;
	struct piece *piece = walk->piece;
	__u32 at = piece->at, length = piece->length;
	__u64 found;

	if (answers->phase == ANSWER_BODY || answers->phase == ANSWER_CHUNK_DATA || is_until_close(answers))
		return skip_counted(answers, piece);
	if (answers->phase > ANSWER_CHUNK_DATA)
		return 1;
	if (at >= length) {
		keep_line(answers, piece);
		if (!piece->left)
			return 1;
		if (load_piece(walk->ctx, answers, piece))
			return 0;
		lose(answers);
		return 1;
	}
	if (answers->phase == ANSWER_STATUS && at == piece->line)
		piece->head_at = piece->offset - length + at;
	/* A usual line in one step; behind the piece there is room to read. */
#pragma clang loop unroll(full)
	for (int word = 0; word < WORDS_A_STEP; word++) {
		found = line_feeds(piece_word(piece->bytes, at));
		if (found)
			break;
		at += 8;
	}
	at += found ? first_of(found) : 0;
	if (!found || at >= length) {
		piece->at = at < length ? at : length;
		return 0;
	}
	if (answers->phase == ANSWER_FIELDS)
		piece->head_end = piece->offset - length + at + 1;
	end_answers_line(answers, piece->bytes, piece->line, at);
	piece->at = at + 1;
	piece->line = at + 1;
	return 0;
}

/* More steps than the longest packet can take: each looks at a byte at least. */
#define STEPS_MAX (1 << 20)

static __always_inline int follow_payload(context_t *ctx, struct answers *answers, const struct said *said)
{
	struct walk walk = { .ctx = ctx, .answers = answers };
	__u32 payload = said->payload, seen, zero = 0;

	seen = answers->next - said->seq;
	if ((__s32)seen < 0)
		return lose(answers);
	if (seen >= payload)
		return 0; /* a repetition */
	payload -= seen;
	answers->next += payload;
	if (answers->phase >= ANSWER_BODY && payload <= answers->remaining) {
		answers->remaining -= payload;
		if (!answers->remaining)
			end_counted(answers);
		return 0;
	}
	if (answers->phase == ANSWER_STATUS && !answers->line_length)
		answers->taken = said->ack;
	walk.piece = bpf_map_lookup_elem(&pieces, &zero);
	if (!walk.piece)
		return lose(answers);
	walk.piece->length = walk.piece->line = walk.piece->at = 0;
	walk.piece->head_at = walk.piece->head_end = 0;
	walk.piece->offset = said->offset + seen;
	walk.piece->left = payload;
	if (answers->phase < ANSWER_BODY && !load_piece(ctx, answers, walk.piece))
		return lose(answers);
	if (bpf_loop(STEPS_MAX, walk_on, &walk, 0) >= STEPS_MAX)
		return lose(answers);
	return 0;
}

/* Looks at a segment of the server. Not static: the verifier walks it once. */
__noinline int follow(context_t *ctx, struct answers *answers, const struct said *said)
{
	volatile __u8 *busy;
	__u16 finished;
	int result;

	if (!answers || !said || (answers->phase > ANSWER_CHUNK_DATA && !is_until_close(answers)))
		return 0;
	busy = &answers->busy;
	/* The socket's lock is held, or a record's: nobody else follows it meanwhile. */
	*busy = 1;
	barrier();
	finished = answers->finished;
	result = follow_payload(ctx, answers, said);
	/* Something has come while it was being said. */
	if (answers->finished != finished && answers->taken != said->ack)
		answers->flags |= ANSWER_AHEAD;
	barrier();
	*busy = 0;
	return result;
}

/* Is this between two answers, with nothing of the next there? */
static __always_inline bool is_between_answers(const struct answers *answers)
{
	return answers->phase == ANSWER_STATUS && !answers->line_length;
}

/* Has all been answered that the server had had of the client when it spoke last? */
static __always_inline bool has_answered(const struct answers *answers)
{
	return is_between_answers(answers) && (answers->flags & (ANSWER_ENDED | ANSWER_MIDWAY)) == ANSWER_ENDED;
}
