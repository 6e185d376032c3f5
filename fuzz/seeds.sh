#!/bin/sh
# Puts what real clients sent, and the example, where cargo-fuzz begins.
set -eu
cd "$(dirname "$0")"
mkdir -p corpus/http_head corpus/client_hello corpus/config
for hex in ../core/tests/data/hello-*.hex; do
    name=$(basename "$hex" .hex)
    tr -d '\n' < "$hex" | xxd -r -p > "corpus/http_head/$name"
    # A record size, then the message without its record's header.
    { printf '\144'; tail -c +6 "corpus/http_head/$name"; } > "corpus/client_hello/$name"
done
printf 'GET /a?b=c HTTP/1.1\r\nHost: a.example:80\r\nX-A: b\r\n\r\n' > corpus/http_head/get
printf 'CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n' > corpus/http_head/connect
printf 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' > corpus/http_head/preface
cp ../examples/*.toml corpus/config/
