#!/bin/sh
# In the guest: runs a server and, once it listens, its client, each for so many seconds at most.
# Prints what the client has printed; if one of the two fails, what that one said, with its status.
limit=$1
shift
timeout -s KILL "$limit" "$@" > /tmp/server 2>&1 &
server=$!
until netstat -ltn | grep -q :18515; do
    if ! kill -0 $server 2> /dev/null; then
        wait $server
        status=$?
        cat /tmp/server
        exit $((status ? status : 1))
    fi
    usleep 20000
done
if ! timeout -s KILL "$limit" "$@" 127.0.0.1 > /tmp/client 2> /tmp/complaints; then
    status=$?
    kill -9 $server 2> /dev/null
    cat /tmp/client /tmp/complaints
    exit $status
fi
if ! wait $server; then
    status=$?
    cat /tmp/server
    exit $status
fi
cat /tmp/client
